-- Unique keys as they are, locked until the transaction ends; and the time.
select key, no, until_at, id, now from {schema}.lock_keys({keys}::text[], {now}::int8)
