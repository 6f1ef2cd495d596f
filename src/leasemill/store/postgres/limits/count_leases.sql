-- Every lease of a queue with a limit of its own holds a place of it (T1), also one that was granted before there was the limit.
-- Locks the leases in the order in which reports do.
with uncounted as materialized (
    select leases.ctid as at_ctid from {schema}.leases
    where leases.queue = {queue}::text and leases.is_limited is null
    order by leases.no for update
)
update {schema}.leases set is_limited = true where ctid = any (array(select at_ctid from uncounted))
