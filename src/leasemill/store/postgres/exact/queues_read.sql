-- Queues by name. Locks nothing.
select queues.name, queues.mode, queues.is_paused, queues.policy
from unnest({names}::text[]) as given (name)
cross join lateral (select * from {schema}.queues where queues.name = given.name offset 0) as queues
