-- When the next job of these queues is due; now, if one waits for admission. NULL: none waits.
select case when min(next.available_at) is not null then
    greatest(0, min(next.available_at) - {schema}.clock({now}::int8)) end as due_in
from unnest({queues}::text[]) as given (name)
cross join lateral (
    select queues.name from {schema}.queues
    where queues.name = given.name and queues.mode <> 'acquire' and not queues.is_paused
    offset 0
) as queue
cross join lateral (
    select min(first.available_at) as available_at
    from generate_series(0, 9) as ranks (rank)
    left join {schema}.watermarks on watermarks.queue = queue.name and watermarks.rank = ranks.rank
        and watermarks.low_at <= (select {schema}.clock({now}::int8))
    cross join lateral (
        select ready.available_at from {schema}.ready
        where ready.queue = queue.name and ready.rank = ranks.rank
            and ready.available_at >= coalesce(watermarks.low_at, 0)
        order by ready.available_at limit 1
    ) as first
    union all
    select 0 where exists (select from {schema}.arrivals where arrivals.queue = queue.name offset 0)
) as next
