-- Queues by name. Locks nothing.
select queues.name, queues.mode, queues.is_paused, queues.policy
from unnest(%(names)b::text[]) as given (name)
cross join lateral (select * from leasemill.queues where queues.name = given.name offset 0) as queues
