-- I7: a queue's first job fixes how it is used. Returns how each is; locks the queues' rows, in order.
insert into {schema}.queues (name, mode)
select given.name, {mode}::text from unnest({names}::text[]) as given (name) order by given.name
on conflict (name) do update set mode = coalesce(queues.mode, excluded.mode)
returning name, mode
