-- Waits, a moment at most, for whoever is ending one of these jobs and may have looked for waiters before there was one.
-- Returns the leases that are there. Locks their rows, in order, against nothing but their end, until it returns.
select lease.no
from (select set_config('lock_timeout', '100', true) as limit_ms offset 0) as timeout
cross join lateral (
    select leases.no from {schema}.leases
    where leases.no = any ({nos}::int8[]) and timeout.limit_ms is not null
    order by leases.no
    for key share
) as lease
