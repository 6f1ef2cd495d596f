-- start: held leases become STARTED; one that was is left as it is (X3).
-- Returns the jobs whose leases are held. Locks the leases' rows, in order.
with given as materialized (
    select job.no, job.id, given.token, given.age_us
    from unnest(%(ids)b::text[], %(tokens)b::text[], %(ages)b::int8[]) with ordinality as given (id, token, age_us, turn)
    cross join lateral (select jobs.no, jobs.id from leasemill.jobs where jobs.id = given.id offset 0) as job
    order by job.no
), held as materialized (
    select lease.*, given.id, given.age_us, leasemill.clock(%(now)b::int8) as now
    from given cross join lateral (
        select leases.* from leasemill.leases
        where leases.no = given.no and leases.token = given.token
            and leases.expires_at > leasemill.clock(%(now)b::int8)
        for update
    ) as lease
), started as (
    update leasemill.leases
    set status = 'started', updated_at = (select max(now) from held),
        started_at = greatest(leased_at, (array(select now - age_us from held))[array_position(array(select no from held), no)])
    where no = any (array(select no from held where status = 'leased'))
)
select count(*) as count, case when count(*) < cardinality(%(ids)b::text[]) then array_agg(id) end as ids from held
