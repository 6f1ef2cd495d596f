-- commit, as the last statement of a user's transaction, in one message with COMMIT: where commit.sql returns no row, this
-- fails, so that COMMIT is not carried out. Locks the lease's row.
with marked as (
    update leasemill.leases
    set started_at = coalesce(started_at, leasemill.clock(%(now)b::int8)),
        committed_at = leasemill.clock(%(now)b::int8), updated_at = leasemill.clock(%(now)b::int8),
        result = %(result)b::text
    where no = (select jobs.no from leasemill.jobs where jobs.id = %(id)b::text)
        and token = %(token)b::text and committed_at is null and expires_at > leasemill.clock(%(now)b::int8)
    returning no
)
select case count(*) when 1 then 1 else ('leasemill: not held, ' || count(*))::int8 end from marked
