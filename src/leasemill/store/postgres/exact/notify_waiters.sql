-- O9: who waits for the end of these jobs is notified when this transaction commits. Returns how many; locks nothing.
select count(pg_notify(waiter.channel, given.no::text)) as count
from unnest({nos}::int8[]) as given (no)
cross join lateral (select waiters.channel from {schema}.waiters where waiters.no = given.no offset 0) as waiter
