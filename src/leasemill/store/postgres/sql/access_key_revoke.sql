-- Revokes a key, once. Returns its row as it is then; nothing, if there is no such key.
update {schema}.access_keys
set revoked_by = case when revoked_at is null then {by}::text else revoked_by end,
    revoked_at = coalesce(revoked_at, {at}::int8)
where id = {id}::text
returning id, name, digest, roles, queues, created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at
