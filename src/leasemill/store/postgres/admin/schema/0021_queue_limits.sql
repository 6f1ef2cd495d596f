-- The places of a queue's own limit are counted from its leases by an index, and are no rows of places any more. Adds a column
-- without a default and makes an index: locks leases for a moment. If a queue has a limit of its own, stop the workers that serve it
-- first: those of earlier versions count its rows of places.
alter table {schema}.leases add column is_limited boolean;  -- true or NULL
create index lease_limited on {schema}.leases (queue) where is_limited;
update {schema}.leases set is_limited = true where exists (
    select from {schema}.limits where limits.name = 'queue:' || leases.queue);
delete from {schema}.places where name like 'queue:%';
