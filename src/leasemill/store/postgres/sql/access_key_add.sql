-- A new key, if there is room. Returns its id; nothing, if there are too many.
insert into {schema}.access_keys (id, name, digest, roles, queues, created_at, created_by, expires_at)
select {id}::text, {name}::text, {digest}::bytea, {roles}::text[], {queues}::text[],
    {created_at}::int8, {created_by}::text, {expires_at}::int8
where (select count(*) from {schema}.access_keys) < {most}::int8
returning id
