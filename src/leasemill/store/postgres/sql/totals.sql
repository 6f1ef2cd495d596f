-- What the store holds now. Ready jobs are counted from each watermark to the next queue and rank that has one (no name sorts
-- after '~'), leases from theirs.
with passed as materialized (
    select queue, rank, low_at from {schema}.watermarks where low_at <= (select {schema}.clock({now}::int8))
), mark as (
    select '' collate "C" as queue, 0::int2 as rank, 0::int8 as low_at
    union all
    select queue, rank, low_at from passed where rank >= 0
), span as (
    select *, lead(queue, 1, '~') over following as next_queue, lead(rank, 1, 0::int2) over following as next_rank
    from mark window following as (order by queue, rank)
), claimable as (
    select coalesce(sum(counted.count), 0)::int8 as count
    from span cross join lateral (
        select count(*) from {schema}.ready
        where (ready.queue, ready.rank, ready.available_at) >= (span.queue, span.rank, span.low_at)
            and (ready.queue, ready.rank) < (span.next_queue, span.next_rank)
    ) as counted
), timed as materialized (
    select count(*) as count, min(leases.expires_at) as next_expiry_at from {schema}.leases
    where leases.expires_at >= coalesce((select low_at from passed where rank = -1), 0)
        and leases.expires_at < 9223372036854775807
)
select
    (select count from claimable) + (select count(*) from {schema}.waiting) + (select count(*) from {schema}.parked)
        + (select count(*) from {schema}.arrivals) as ready,
    timed.count + (select count(*) from {schema}.leases where leases.expires_at = 9223372036854775807) as leased,
    (select coalesce(sum(tallies.succeeded), 0)::int8 from {schema}.tallies) as succeeded,
    (select count(*) from {schema}.kept where kept.state = 'failed') as failed,
    (select count(*) from {schema}.kept where kept.state = 'dead') as dead,
    (select count(*) from {schema}.kept where kept.state = 'cancelled') as cancelled,
    timed.count as timed,
    (select case when is_called then last_value else 0 end from {schema}.fence) as fence,
    (select case when is_called then last_value else 0 end from {schema}.seq) as seq,
    timed.next_expiry_at
from timed
