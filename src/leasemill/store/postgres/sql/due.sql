-- Whether there are leases to expire or arrivals to admit. A look, nothing more.
select
    exists (
        select from {schema}.leases
        where expires_at <= {schema}.clock({now}::int8) and expires_at >= {from_at}::int8
            and expires_at < 9223372036854775807
    ) as has_expired,
    exists (select from {schema}.arrivals) as has_arrived,
    {schema}.clock({now}::int8) as now
