-- commit: the marker and the result, once, while the lease is held (X4, X6); in a user's transaction its last statement.
-- Returns the job if it was held and had not committed. Locks the lease's row.
update leasemill.leases
set started_at = coalesce(started_at, leasemill.clock(%(now)b::int8)),
    committed_at = leasemill.clock(%(now)b::int8), updated_at = leasemill.clock(%(now)b::int8), result = %(result)b::text
where no = (select jobs.no from leasemill.jobs where jobs.id = %(id)b::text)
    and token = %(token)b::text and committed_at is null and expires_at > leasemill.clock(%(now)b::int8)
returning no
