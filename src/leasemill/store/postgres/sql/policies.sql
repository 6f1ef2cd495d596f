-- The policies that were set for these queues, in their order; NULL where none is.
select queues.policy
from unnest({queues}::text[]) with ordinality as given (name, turn)
left join {schema}.queues on queues.name = given.name
order by given.turn
