-- Queues by name, with their jobs counted by state and the time the next one is due.
select queues.name, queues.mode, queues.is_paused, queues.policy,
    (select count(*) from {schema}.ready where ready.queue = queues.name)
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
    case when queues.mode = 'claim' then (
        select min(first.available_at) from generate_series(0, 9) as ranks (rank) cross join lateral (
            select ready.available_at from {schema}.ready
            where ready.queue = queues.name and ready.rank = ranks.rank
            order by ready.available_at limit 1
        ) as first
    ) end as oldest_available_at
from {schema}.queues
where queues.name > {after}::text
order by queues.name
limit {limit}::int8
