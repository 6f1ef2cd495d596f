-- What the store holds now.
select
    (select count(*) from {schema}.ready) + (select count(*) from {schema}.waiting)
        + (select count(*) from {schema}.arrivals) as ready,
    (select count(*) from {schema}.leases) as leased,
    (select coalesce(sum(tallies.succeeded), 0)::int8 from {schema}.tallies) as succeeded,
    (select count(*) from {schema}.kept where kept.state = 'failed') as failed,
    (select count(*) from {schema}.kept where kept.state = 'dead') as dead,
    (select count(*) from {schema}.kept where kept.state = 'cancelled') as cancelled,
    (select count(*) from {schema}.leases where leases.expires_at < 9223372036854775807) as timed,
    (select case when is_called then last_value else 0 end from {schema}.fence) as fence,
    (select case when is_called then last_value else 0 end from {schema}.seq) as seq,
    (select min(leases.expires_at) from {schema}.leases where leases.expires_at < 9223372036854775807) as next_expiry_at
