-- How queues are used, as far as they have been.
select queues.name, queues.mode, queues.is_limited
from unnest({names}::text[]) as given (name)
cross join lateral (select * from {schema}.queues where queues.name = given.name offset 0) as queues
