-- Locks those of these keys that no other transaction has locked. Returns them.
select unique_keys.queue, unique_keys.key
from unnest({queues}::text[], {keys}::text[]) as given (queue, key)
join {schema}.unique_keys on unique_keys.queue = given.queue and unique_keys.key = given.key
order by unique_keys.queue, unique_keys.key
for update of unique_keys skip locked
