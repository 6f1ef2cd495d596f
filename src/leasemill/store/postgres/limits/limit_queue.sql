-- A queue gets a limit of its own: from now on it is claimed under it, and its leases hold places. Versions that do not know
-- limits are given no more of its jobs. The caller has locked the table of leases, so that no claim is under way that does not
-- know this. Locks the queue's row.
with named as (
    insert into {schema}.limit_queues (queue, name) values ({queue}::text, 'queue:' || {queue}::text)
    on conflict (queue, name) do nothing
)
insert into {schema}.queues (name, is_limited) values ({queue}::text, true)
on conflict (name) do update set is_limited = true, mode = case when queues.mode = 'claim' then 'ruled' else queues.mode end
