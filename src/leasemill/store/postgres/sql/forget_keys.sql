-- U6: keys that nobody holds are forgotten. A statement before this one has locked them: this one sees who took them last.
with gone as (
    delete from {schema}.unique_keys
    using unnest({queues}::text[], {keys}::text[]) as given (queue, key)
    where unique_keys.queue = given.queue and unique_keys.key = given.key
        and not {schema}.is_key_held(unique_keys.no, unique_keys.until_at, {schema}.clock({now}::int8))
    returning 1
)
select count(*) from gone
