-- Locks limits by their names, in the order in which claims do. `waits`: false to take them only if all are free now.
-- `leasemill.limits_locked` is true, for the rest of the transaction, if they are locked.
-- What stands behind the locks is read by the statements that follow, whose snapshots are newer.
select set_config('leasemill.limits_locked', bool_and(case when {waits}::bool then pg_advisory_xact_lock(key)::text is not null
    else pg_try_advisory_xact_lock(key) end)::text, true)
from (
    select distinct hashtextextended('{schema}.limits ' || name, 0) as key
    from unnest({names}::text[]) as given (name)
    order by key
) as named
