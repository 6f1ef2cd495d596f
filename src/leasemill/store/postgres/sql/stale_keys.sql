-- Keys behind a position: how many were looked at, the last of them, and those that nobody holds as far as this statement sees.
with page as materialized (
    select unique_keys.queue, unique_keys.key, unique_keys.no, unique_keys.until_at from {schema}.unique_keys
    where (unique_keys.queue, unique_keys.key) > ({after_queue}::text collate "C", {after}::text collate "C")
    order by unique_keys.queue, unique_keys.key limit {limit}::int8
), stale as materialized (
    select queue, key from page where not {schema}.is_key_held(no, until_at, {schema}.clock({now}::int8))
)
select (select count(*) from page) as count,
    (select array[queue, key] from page order by queue desc, key desc limit 1) as last,
    (select array_agg(queue order by queue, key) from stale) as queues,
    (select array_agg(key order by queue, key) from stale) as keys
