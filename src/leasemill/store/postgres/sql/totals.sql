-- What the store holds now.
select
    (select count(*) from leasemill.ready) + (select count(*) from leasemill.waiting)
        + (select count(*) from leasemill.arrivals) as ready,
    (select count(*) from leasemill.leases) as leased,
    (select coalesce(sum(tallies.succeeded), 0)::int8 from leasemill.tallies) as succeeded,
    (select count(*) from leasemill.kept where kept.state = 'failed') as failed,
    (select count(*) from leasemill.kept where kept.state = 'dead') as dead,
    (select count(*) from leasemill.kept where kept.state = 'cancelled') as cancelled,
    (select count(*) from leasemill.leases where leases.expires_at < 9223372036854775807) as timed,
    (select case when is_called then last_value else 0 end from leasemill.fence) as fence,
    (select case when is_called then last_value else 0 end from leasemill.seq) as seq,
    (select min(leases.expires_at) from leasemill.leases where leases.expires_at < 9223372036854775807) as next_expiry_at
