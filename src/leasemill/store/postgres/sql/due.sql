-- Whether there are leases to expire or arrivals to admit. A look, nothing more.
select
    exists (
        select from leasemill.leases
        where expires_at <= leasemill.clock(%(now)b::int8) and expires_at >= %(from_at)b::int8
            and expires_at < 9223372036854775807
    ) as has_expired,
    exists (select from leasemill.arrivals) as has_arrived,
    leasemill.clock(%(now)b::int8) as now
