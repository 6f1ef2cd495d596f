-- The early look of a user's commit: whether its lease is held, or has committed. Returns the status; locks nothing.
select status from leasemill.leases
where no = (select jobs.no from leasemill.jobs where jobs.id = %(id)b::text)
    and token = %(token)b::text and (status = 'committed' or expires_at > leasemill.clock(%(now)b::int8))
