-- expire, first step: leases that time has taken, the longest expired first (L7).
-- Returns their jobs; `decided.py` records what follows from it. Locks nothing.
select jobs.id
from leasemill.leases cross join lateral (select jobs.id from leasemill.jobs where jobs.no = leases.no offset 0) as jobs
where leases.expires_at <= leasemill.clock(%(now)b::int8) and leases.expires_at >= %(from_at)b::int8
    and leases.expires_at < 9223372036854775807
order by leases.expires_at, leases.fence
limit %(limit)b::int8
