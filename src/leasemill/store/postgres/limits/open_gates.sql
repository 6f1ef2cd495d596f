-- A claim under limits, second: places whose leases have gone are free, and what waited for one of them, or for a time that has
-- come, may be looked at again. Runs under the locks of the limits.
with time as materialized (
    select {schema}.clock({now}::int8) as now
), freed as (
    delete from {schema}.places
    where name = any ({names}::text[]) and not exists (
        select from {schema}.leases where leases.no = places.no and leases.fence = places.fence offset 0)
    returning name, key
), shut as materialized (
    select gate.at_ctid
    from (select distinct name, key from freed) as free
    cross join lateral (
        select gates.ctid as at_ctid from {schema}.gates
        where gates.name = free.name and gates.key = free.key and not gates.is_open
        offset 0
    ) as gate
    union
    select gate.at_ctid
    from time cross join unnest({queues}::text[]) as given (queue)
    cross join lateral (
        select gates.ctid as at_ctid from {schema}.gates
        where gates.queue = given.queue and not gates.is_open and gates.opens_at is not null and gates.opens_at <= time.now
        offset 0
    ) as gate
), opened as (
    update {schema}.gates set is_open = true, opens_at = null where ctid = any (array(select at_ctid from shut))
    returning 1
)
select count(*) from opened
