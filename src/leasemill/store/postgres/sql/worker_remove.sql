-- Forgets a worker. Returns it, if it was there.
delete from {schema}.workers where id = {id}::text returning id
