-- The watermark of leases, which have no queue's: the first that expires, or 15 seconds ago. No statement of the store takes as long
-- between its clock and its commit, and none makes a lease that has expired. Moves five seconds at least.
with gate as materialized (
    select {schema}.clock({now}::int8) as now,
        coalesce((select low_at from {schema}.watermarks where queue = '' and rank = -1), 0) as low_at
)
insert into {schema}.watermarks (queue, rank, low_at)
select '', -1, least(now - 15000000, (
    select leases.expires_at from {schema}.leases
    where leases.expires_at >= gate.low_at and leases.expires_at < 9223372036854775807
    order by leases.expires_at limit 1
)) from gate
on conflict (queue, rank) do update set low_at = excluded.low_at
where excluded.low_at >= watermarks.low_at + 5000000
