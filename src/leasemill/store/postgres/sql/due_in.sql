-- When the next job of these queues is due; now, if one waits for admission. NULL: none waits for a time. And whether, in a queue
-- with limits, there is one that a claim would have to look at to find out; such a job does not count in the first answer.
with time as materialized (
    select {schema}.clock({now}::int8) as now
)
select case when count(next.available_at) filter (where not next.is_to_be_seen) > 0 then
        greatest(0, min(next.available_at) filter (where not next.is_to_be_seen) - (select now from time)) end as due_in,
    coalesce(bool_or(next.is_to_be_seen), false) as is_to_be_seen
from unnest({queues}::text[]) as given (name)
cross join lateral (
    select queues.name, queues.is_limited from {schema}.queues
    where queues.name = given.name and queues.mode <> 'acquire' and not queues.is_paused
        and not exists (
            select from {schema}.limits
            where queues.is_limited and limits.name = 'queue:' || queues.name and limits.set_terms[1] <= (
                select count(*) from {schema}.leases where leases.queue = queues.name and leases.is_limited
            )
            offset 0
        )
    offset 0
) as queue
cross join lateral (
    select first.available_at, queue.is_limited and first.available_at <= (select now from time) as is_to_be_seen
    from generate_series(0, 9) as ranks (rank)
    left join {schema}.watermarks on watermarks.queue = queue.name and watermarks.rank = ranks.rank
        and watermarks.low_at <= (select now from time)
    cross join lateral (
        select ready.available_at from {schema}.ready
        where ready.queue = queue.name and ready.rank = ranks.rank
            and ready.available_at >= coalesce(watermarks.low_at, 0)
        order by ready.available_at limit 1
    ) as first
    union all
    select 0, false where exists (select from {schema}.arrivals where arrivals.queue = queue.name offset 0)
    union all
    select 0, true
    where queue.is_limited and (
        exists (select from {schema}.gates where gates.queue = queue.name and gates.is_open offset 0)
        or exists (
            select from {schema}.limit_queues as named cross join lateral (
                select from {schema}.places
                where places.name = named.name
                    and not exists (
                        select from {schema}.leases where leases.no = places.no and leases.fence = places.fence offset 0)
                    and exists (
                        select from {schema}.gates
                        where gates.name = places.name and gates.key = places.key and gates.queue = queue.name offset 0)
                offset 0
            ) as freed
            where named.queue = queue.name
        )
    )
    union all
    select gate.opens_at, gate.opens_at <= (select now from time)
    from (
        select min(gates.opens_at) as opens_at from {schema}.gates
        where queue.is_limited and gates.queue = queue.name and not gates.is_open and gates.opens_at is not null
    ) as gate
) as next
