-- How queues are used, as far as they have been.
select queues.name, queues.mode
from unnest(%(names)b::text[]) as given (name)
cross join lateral (select * from leasemill.queues where queues.name = given.name offset 0) as queues
