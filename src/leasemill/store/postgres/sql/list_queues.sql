-- Queues by name, with their jobs counted by state and the time the next one is due. Ready jobs and leases are counted from their
-- watermarks. A job that waits for a place does not count as due; one that waits for a rate is due when the rate is.
with passed as materialized (
    select queue, rank, low_at from {schema}.watermarks where low_at <= (select {schema}.clock({now}::int8))
), held as materialized (
    select held.queue, count(*) as count from (
        select leases.queue from {schema}.leases
        where leases.expires_at >= coalesce((select low_at from passed where rank = -1), 0)
            and leases.expires_at < 9223372036854775807
        union all
        select leases.queue from {schema}.leases where leases.expires_at = 9223372036854775807
    ) as held
    group by held.queue
), ended as materialized (  -- in one pass, each job by its number, however many queues there are
    select named.queue, count(*) filter (where kept.state = 'failed') as failed,
        count(*) filter (where kept.state = 'dead') as dead, count(*) filter (where kept.state = 'cancelled') as cancelled
    from {schema}.kept
    cross join lateral (select jobs.queue from {schema}.jobs where jobs.no = kept.no offset 0) as named
    group by named.queue
)
select queues.name, queues.mode, queues.is_paused, queues.policy,
    claimable.count
        + (select count(*) from {schema}.waiting where waiting.queue = queues.name)
        + (select count(*) from {schema}.parked where parked.queue = queues.name)
        + (select count(*) from {schema}.arrivals where arrivals.queue = queues.name) as ready,
    coalesce((select held.count from held where held.queue = queues.name), 0) as leased,
    (select coalesce(sum(tallies.succeeded), 0)::int8 from {schema}.tallies where tallies.queue = queues.name) as succeeded,
    coalesce(ended.failed, 0) as failed, coalesce(ended.dead, 0) as dead, coalesce(ended.cancelled, 0) as cancelled,
    case when queues.mode <> 'acquire' then least(claimable.oldest_at, (
        select min(case when gates.is_open then gates.available_at else gates.opens_at end)
        from {schema}.gates where gates.queue = queues.name
    )) end as oldest_available_at
from {schema}.queues
cross join lateral (
    select sum(counted.count)::int8 as count, min(counted.oldest_at) as oldest_at
    from generate_series(0, 9) as ranks (rank)
    left join passed on passed.queue = queues.name and passed.rank = ranks.rank
    cross join lateral (
        select count(*), min(ready.available_at) as oldest_at from {schema}.ready
        where ready.queue = queues.name and ready.rank = ranks.rank
            and ready.available_at >= coalesce(passed.low_at, 0)
    ) as counted
) as claimable
left join ended on ended.queue = queues.name
where queues.name > {after}::text
    and not (queues.is_limited and queues.mode is null and not queues.is_paused and queues.policy is null)  -- never used
order by queues.name
limit {limit}::int8
