-- Forgets a worker; with a record, only if that is the worker's still. Returns it, if it was there.
delete from {schema}.workers
where id = {id}::text and ({record}::bytea is null or record = {record}::bytea)
returning id
