-- expire, first step: leases that have expired, the longest expired first (L7).
-- Returns their jobs, and the lanes and groups of these. Locks the leases and their lanes, and
-- waits for neither: who holds one is about to decide on that job, and the others are not kept waiting.
select jobs.id, expired.no, expired.queue, expired.lane, jobs.group_id
from (
    select leases.no, leases.queue, leases.lane, leases.expires_at, leases.fence
    from {schema}.leases
    left join lateral (
        select lanes.lane from {schema}.lanes
        where lanes.queue = leases.queue and lanes.lane = leases.lane
        for update skip locked
    ) as free on leases.lane is not null
    where leases.expires_at <= (select {schema}.clock({now}::int8))
        and leases.expires_at >= least({from_at}::int8, (select {schema}.clock({now}::int8))) - 5000000
        and leases.expires_at < 9223372036854775807 and (leases.lane is null or free.lane is not null)
    order by leases.expires_at, leases.fence
    limit {limit}::int8
    for update of leases skip locked
) as expired
cross join lateral (select jobs.id, jobs.group_id from {schema}.jobs where jobs.no = expired.no offset 0) as jobs
order by expired.expires_at, expired.fence
