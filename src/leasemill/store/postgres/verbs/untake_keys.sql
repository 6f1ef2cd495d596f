-- Keys that were taken in this transaction for jobs that were not made are nobody's.
delete from {schema}.unique_keys
using unnest({queues}::text[], {keys}::text[]) as given (queue, key)
where unique_keys.queue = given.queue and unique_keys.key = given.key and unique_keys.no = any ({nos}::int8[])
returning unique_keys.key
