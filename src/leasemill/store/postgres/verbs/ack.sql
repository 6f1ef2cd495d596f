-- ack: all of the leases end, or none: it fails if one of them is not held, and what was sent along is not carried out.
-- O9: who waits for one of the jobs is notified.
-- Returns how many it ended.
with {_ended}
select count(*) as count,
    (select count(pg_notify(channel, no::text)) from {schema}.waiters where no = any ({nos}::int8[])) as notified,
    case when count(*) < cardinality({nos}::int8[]) then {schema}.fail('LM004', 'a lease is not held') end as failed
from ended
