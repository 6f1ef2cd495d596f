-- Makes room for one more key: forgets the oldest of those that were revoked, as many as there are too many.
delete from {schema}.access_keys
where id in (
    select id from {schema}.access_keys
    where revoked_at is not null
    order by revoked_at, id
    limit greatest(0, (select count(*) from {schema}.access_keys) + 1 - {most}::int8)
)
