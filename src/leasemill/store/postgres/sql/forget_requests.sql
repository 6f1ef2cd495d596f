-- Requests whose leases have all ended are forgotten: repeated, they would find none (C5). The others are looked at again
-- in an hour. Returns how many were looked at. Locks the requests; skips those that a claim or another look holds.
with old as materialized (
    select id, nos from {schema}.requests
    where forget_at <= {schema}.clock({now}::int8)
    order by forget_at
    limit {limit}::int8
    for update skip locked
), used as materialized (
    select id from old where exists (
        select from {schema}.leases where leases.no = any (old.nos) and leases.request_id = old.id offset 0
    )
), gone as (
    delete from {schema}.requests where id = any (array(select id from old except select id from used))
), put_off as (
    update {schema}.requests set forget_at = {schema}.clock({now}::int8) + 3600000000
    where id = any (array(select id from used))
)
select count(*) from old
