-- A text that is another one when a key was added, revoked or forgotten. Changes of the last use leave it as it is.
select coalesce(md5(string_agg(id || ' ' || coalesce(revoked_at, 0), ',' order by id)), '') from {schema}.access_keys
