-- U6: keys that nobody holds are forgotten. A statement before this one has locked them: this one sees who took them last.
with gone as (
    delete from {schema}.keys
    where keys.key = any ({keys}::text[])
        and not {schema}.is_key_held(keys.no, keys.until_at, {schema}.clock({now}::int8))
    returning 1
)
select count(*) from gone
