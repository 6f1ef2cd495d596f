-- Locks limits by their names, in the order in which claims do; waits for those that others have locked. `leasemill.limits_locked` is
-- true from then on, for the rest of the transaction.
-- What stands behind the locks is read by the statements that follow, whose snapshots are newer.
select set_config('leasemill.limits_locked', (count(pg_advisory_xact_lock(key)) > 0)::text, true)
from (
    select distinct hashtextextended('{schema}.limits ' || name, 0) as key
    from unnest({names}::text[]) as given (name)
    order by key
) as named
