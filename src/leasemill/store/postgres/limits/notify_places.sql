-- Leases under these limits have ended: notifies the queues where a job may wait for one of the places.
select count(pg_notify({channel}::text, queue)) from (
    select distinct named.queue from {schema}.limit_queues as named
    where named.name = any ({names}::text[]) and (named.name = 'queue:' || named.queue or exists (
        select from {schema}.gates where gates.name = named.name and gates.queue = named.queue offset 0))
) as waiting
