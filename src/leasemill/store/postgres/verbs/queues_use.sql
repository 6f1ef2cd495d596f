-- I7: a queue's first job fixes how it is used; its first job with limits, a group or a chain makes it a queue with rules, and so
-- does a limit that it had before.
-- Returns how each is; locks the queues' rows, in order.
insert into {schema}.queues (name, mode)
select given.name, {mode}::text from unnest({names}::text[]) as given (name) order by given.name
on conflict (name) do update set mode = case
    when queues.is_limited and coalesce(queues.mode, 'claim') = 'claim' then 'ruled'
    when queues.mode is null or (queues.mode = 'claim' and excluded.mode = 'ruled') then excluded.mode else queues.mode end
returning name, mode
