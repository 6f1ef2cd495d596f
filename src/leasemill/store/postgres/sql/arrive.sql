-- admission, first step: the lanes of arrived jobs exist. One admission at a time, so that lanes keep their order; who
-- finds another at it leaves it to that one.
-- Leaves a mark in the transaction for the second step, which may have been sent along with this one: the lock must be held
-- before that one's snapshot is taken.
-- Returns whether this is the one, and how many lanes there are. Locks the admission, inserts lanes in order.
with gate as materialized (
    select coalesce(set_config('leasemill.admits', case when pg_try_advisory_xact_lock({admission_key}::int8) then 'yes' end,
        true), '') = 'yes' as is_open
), come as materialized (
    select distinct queue, lane
    from (select queue, lane from {schema}.arrivals order by no limit {limit}::int8) as first
), made as (
    insert into {schema}.lanes (queue, lane)
    select come.queue, come.lane from come cross join gate where gate.is_open
    order by come.queue, come.lane
    on conflict (queue, lane) do nothing
)
select gate.is_open, (select count(*) from come) as count from gate
