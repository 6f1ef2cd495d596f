-- What has come and been given out so far, and how many jobs are held; leases are counted from their watermark.
select
    (select case when is_called then last_value else 0 end from {schema}.seq) as seq,
    (select case when is_called then last_value else 0 end from {schema}.fence) as fence,
    (
        select count(*) from {schema}.leases
        where leases.expires_at >= coalesce((
            select low_at from {schema}.watermarks where rank = -1 and low_at <= (select {schema}.clock({now}::int8))
        ), 0)
    ) as leased
