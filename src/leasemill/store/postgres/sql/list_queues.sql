-- Queues by name, with their jobs counted by state and the time the next one is due.
select queues.name, queues.mode, queues.is_paused, queues.policy,
    claimable.count
        + (select count(*) from {schema}.waiting where waiting.queue = queues.name)
        + (select count(*) from {schema}.arrivals where arrivals.queue = queues.name) as ready,
    (select count(*) from {schema}.leases where leases.queue = queues.name) as leased,
    (select coalesce(sum(tallies.succeeded), 0)::int8 from {schema}.tallies where tallies.queue = queues.name) as succeeded,
    (
        select count(*) from {schema}.kept where kept.state = 'failed' and exists (
            select from {schema}.jobs where jobs.no = kept.no and jobs.queue = queues.name offset 0)
    ) as failed,
    (
        select count(*) from {schema}.kept where kept.state = 'dead' and exists (
            select from {schema}.jobs where jobs.no = kept.no and jobs.queue = queues.name offset 0)
    ) as dead,
    (
        select count(*) from {schema}.kept where kept.state = 'cancelled' and exists (
            select from {schema}.jobs where jobs.no = kept.no and jobs.queue = queues.name offset 0)
    ) as cancelled,
    case when queues.mode = 'claim' then claimable.oldest_at end as oldest_available_at
from {schema}.queues
cross join lateral (
    select sum(counted.count)::int8 as count, min(counted.oldest_at) as oldest_at
    from generate_series(0, 9) as ranks (rank)
    left join {schema}.watermarks on watermarks.queue = queues.name and watermarks.rank = ranks.rank
        and watermarks.low_at <= (select {schema}.clock({now}::int8))
    cross join lateral (
        select count(*), min(ready.available_at) as oldest_at from {schema}.ready
        where ready.queue = queues.name and ready.rank = ranks.rank
            and ready.available_at >= coalesce(watermarks.low_at, 0)
    ) as counted
) as claimable
where queues.name > {after}::text
order by queues.name
limit {limit}::int8
