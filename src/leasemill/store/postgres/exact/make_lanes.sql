-- Lanes to be used: made, in order, if they are not there.
insert into {schema}.lanes (queue, lane)
select given.queue, given.lane from unnest({queues}::text[], {lanes}::text[]) as given (queue, lane)
order by given.queue, given.lane
on conflict (queue, lane) do nothing
returning queue, lane
