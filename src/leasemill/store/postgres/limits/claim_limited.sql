-- A claim under limits in one statement, where nothing is special: nobody waits at a gate of these limits, none of them has a rate,
-- and every job that is first has a place under each limit it names. From a queue whose own limit has room for fewer, so many.
-- Otherwise (`is_plain` false) nothing is granted, and the claim is decided as in `load_limited`.
-- T1 to T3: places are counted from the leases that are there. C1, C2, C5, I2, I5 as in `claim`.
-- Runs after `lock_names` or `ack_all_and_lock` of the same transaction, by a snapshot that is newer than the locks.
-- Returns the leases with their jobs, by fence; with each, or in a row without a lease, what `claim` returns and whether it was plain.
with gate as materialized (
    select {alone}, {schema}.clock({now}::int8) as now,
        current_setting('leasemill.limits_locked', true) = 'true'
        and not exists (
            select from {schema}.limit_queues where queue = any ({claimed}::text[]) and name <> all ({names}::text[])
        )
        and not exists (select from {schema}.requests where requests.id = {request_id}::text){nobody_waits} as is_plain
), known as materialized (
    select limits.name, coalesce(limits.set_terms[1], limits.declared[1]) as places
    from {schema}.limits where limits.name = any ({names}::text[])
), served as materialized (
    select given.queue, given.turn, queue.policy, known.name is not null as is_own, case when known.places is not null
        then greatest(0, known.places - (
            select count(*) from {schema}.leases where leases.queue = given.queue and leases.is_limited
        )) end as room
    from unnest({claimed}::text[]) with ordinality as given (queue, turn)
    cross join lateral (
        select queues.policy from {schema}.queues
        where queues.name = given.queue and queues.mode <> 'acquire' and not queues.is_paused
        offset 0
    ) as queue
    left join known on known.name = 'queue:' || given.queue
    where (select is_plain from gate)
    order by given.turn
), claimable as materialized (
    select served.turn, served.policy, served.is_own, first.*
    from gate cross join served cross join lateral (
        select r.* from generate_series(0, 9) as ranks (rank) cross join lateral (
            select ready.ctid as at_ctid, ready.rank, ready.available_at, ready.seq, coalesce(ready.no, ready.seq) as no,
                ready.attempt, ready.retries, ready.expirations
            from {schema}.ready
            where ready.queue = served.queue and ready.rank = ranks.rank and ready.available_at <= gate.now
                and ready.available_at >= coalesce((
                    select low_at from {schema}.watermarks
                    where watermarks.queue = served.queue and watermarks.rank = ranks.rank and low_at <= gate.now
                ), 0)
            order by ready.available_at, ready.seq
            limit least({limit}::int8, served.room)
            for update skip locked
        ) as r
        limit least({limit}::int8, served.room)
    ) as first
    limit {limit}::int8
), numbered as materialized (
    select claimable.*, row_number() over (order by turn, rank, available_at, seq) as number from claimable
){uses}, plain as materialized (
    select gate.is_plain and not exists (
        select from numbered cross join lateral (
            select from {schema}.executions as e
            where e.no = numbered.no and e.token = ({tokens}::text[])[numbered.number]
            offset 0
        ) as spent
        where numbered.attempt > 0
    ) and ({slots}::int8 is null or ({limited}) <= {slots}::int8){have_places} as is_plain
    from gate
), {with_kinds}, settled as materialized (
    select j.*, number, rank, seq, available_at, coalesce(attempt, 0) + 1 as attempt, retries, expirations, is_own, at_ctid,
        nextval('{schema}.fence') as fence, token, now, now + lease_us as expires_at,
        {settled_terms}
    from (
        select *, {defaults}::int8[] as d
        from numbered join unnest({tokens}::text[]) with ordinality as given (token, number) using (number)
        where (select is_plain from plain) order by number
    ) as p
    cross join gate
    cross join lateral (select * from {schema}.jobs where no = p.no offset 0) as j
    left join lateral (select policy from kinds where kind = j.kind offset 0) as k on true
    {settled_lease}
), taken as (
    delete from {schema}.ready where ctid = any (array(select at_ctid from settled))
), {grant}{held}, come as materialized (
    select gate.now, plain.is_plain, exists (select from {schema}.arrivals) as has_arrived,
        {has_expired} as has_expired
    from gate cross join plain
)
select {lease_row}, has_arrived, has_expired, is_plain
from come left join settled as s on true
order by s.fence
