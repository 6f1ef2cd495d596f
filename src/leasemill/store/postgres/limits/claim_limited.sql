-- A claim under limits in one statement, where nothing is special: nobody waits at a gate of these limits, none of them has a rate,
-- and every job that is first has a place under each limit it names. From a queue whose own limit has room for fewer, so many.
-- Otherwise (`is_plain` false) nothing is granted, and the claim is decided as in `load_limited`.
-- T1 to T3: places are counted from the leases that are there; a row whose lease has gone is deleted. C1, C2, C5, I2, I5 as in `claim`.
-- Runs after `lock_names` of the same transaction, by a snapshot that is newer than the locks.
-- Returns the leases with their jobs, by fence; with each, or in a row without a lease, what `claim` returns and whether it was plain.
with gate as materialized (
    select {alone}, {schema}.clock({now}::int8) as now,
        current_setting('leasemill.limits_locked', true) = 'true'
        and (select count(distinct name) from {schema}.limit_queues where queue = any ({claimed}::text[])) = cardinality({names}::text[])
        and not exists (select from {schema}.gates where gates.name = any ({names}::text[]))
        and not exists (select from {schema}.rates where rates.name = any ({names}::text[]))
        and not exists (select from {schema}.requests where requests.id = {request_id}::text)
        and not exists (
            select from {schema}.limits where limits.name = any ({names}::text[])
                and coalesce(limits.set_terms[2], limits.declared[2]) is not null
        ) as is_plain
), known as materialized (
    select limits.name, coalesce(limits.set_terms[1], limits.declared[1]) as places
    from {schema}.limits where limits.name = any ({names}::text[])
), place as materialized (
    select places.ctid as at_ctid, places.name, places.key, places.no, exists (
        select from {schema}.leases where leases.no = places.no and leases.fence = places.fence offset 0
    ) as is_held
    from {schema}.places where places.name = any ({names}::text[]) and (select is_plain from gate)
), served as materialized (
    select given.queue, given.turn, queue.policy, known.name as own, case when known.places is not null
        then greatest(0, known.places - (select count(*) from place where place.name = known.name and place.is_held)) end as room
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
    select served.turn, served.policy as queue_policy, served.own, first.*
    from gate cross join served cross join lateral (
        select r.* from generate_series(0, 9) as ranks (rank) cross join lateral (
            select ready.ctid as ready_ctid, ready.rank, ready.available_at, ready.seq, coalesce(ready.no, ready.seq) as no,
                ready.attempt as attempts_before, ready.retries, ready.expirations
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
    select claimable.*, row_number() over (order by claimable.turn, claimable.rank, claimable.available_at, claimable.seq) as number,
        job.id, job.queue, job.kind, job.payload, job.lane, job.priority, job.run_at, job.delay_us, job.policy, job.headers, job.rules,
        job.created_at
    from claimable cross join lateral (select * from {schema}.jobs where jobs.no = claimable.no offset 0) as job
), uses as materialized (
    select numbered.number, use ->> 0 as name, coalesce(use ->> 1, '') as key
    from numbered cross join lateral json_array_elements(numbered.rules::json -> 1) as use
    where numbered.rules is not null
), plain as materialized (
    select gate.is_plain and not exists (
        select from numbered cross join lateral (
            select from {schema}.executions as e
            where e.no = numbered.no and e.token = ({tokens}::text[])[numbered.number]
            offset 0
        ) as spent
        where numbered.attempts_before > 0
    ) and not exists (
        select from (
            select name, key, count(*) as count
            from (select name, key, true as is_wanted from uses union all select name, key, false from place where is_held) as one
            group by name, key
            having bool_or(is_wanted)
        ) as used
        join known on known.name = used.name
        where used.count > known.places
    ) and ({slots}::int8 is null or (
        select count(*) from (select number from uses union select number from numbered where own is not null) as limited
    ) <= {slots}::int8) as is_plain
    from gate
), {with_kinds}, settled as materialized (
    select j.*, coalesce(j.attempts_before, 0) + 1 as attempt,
        nextval('{schema}.fence') as fence, ({tokens}::text[])[number] as token, now, now + lease_us as expires_at,
        {settled_terms}
    from (select *, {defaults}::int8[] as d from numbered where (select is_plain from plain) order by number) as j
    cross join gate
    cross join lateral (select j.queue_policy as policy) as p
    left join lateral (select policy from kinds where kind = j.kind offset 0) as k on true
    {settled_lease}
), taken as (
    delete from {schema}.ready where ctid = any (array(select ready_ctid from settled))
), {grant}, wanted as materialized (
    select uses.name, uses.key, settled.no, settled.fence from uses join settled on settled.number = uses.number
    union all
    select settled.own, '', settled.no, settled.fence from settled where settled.own is not null
), again as materialized (
    select place.at_ctid, wanted.no, wanted.name, wanted.key, wanted.fence
    from place join wanted on wanted.no = place.no and wanted.name = place.name and wanted.key = place.key
), held_again as (
    update {schema}.places set fence = again.fence from again where places.ctid = again.at_ctid
), held as (
    insert into {schema}.places (name, key, no, fence)
    select wanted.name, wanted.key, wanted.no, wanted.fence from wanted
    where not exists (
        select from again where again.no = wanted.no and again.name = wanted.name and again.key = wanted.key
    )
), freed as (
    delete from {schema}.places where ctid = any (array(
        select at_ctid from place where not is_held and at_ctid not in (select again.at_ctid from again)
    ))
), come as materialized (
    select gate.now, plain.is_plain, exists (select from {schema}.arrivals) as has_arrived,
        {has_expired} as has_expired
    from gate cross join plain
)
select {lease_row}, has_arrived, has_expired, is_plain
from come left join settled as s on true
order by s.fence
