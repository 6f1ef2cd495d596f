-- Unique keys as they are, locked until the transaction ends; and the time.
select queue, key, no, until_at, id, now from {schema}.lock_keys({queues}::text[], {keys}::text[], {now}::int8)
