-- Keys behind a position: how many were looked at, the last of them, and those that nobody holds as far as this statement sees.
with page as materialized (
    select keys.key, keys.no, keys.until_at from {schema}.keys
    where keys.key > {after}::text collate "C"
    order by keys.key limit {limit}::int8
)
select count(*) as count, max(key) as last,
    array_agg(key) filter (where not {schema}.is_key_held(no, until_at, {schema}.clock({now}::int8))) as keys
from page
