-- A claim under limits, fourth: leases on the jobs that were chosen, in order, with a place for each limit they name.
-- I5: the terms are settled here, as in claim.sql. Returns the leases with their jobs, by fence.
-- Locks the rows it takes; one that is not there, or that somebody is about to take, fails the whole, and so does a limit that was
-- not there when limits were locked: it is chosen again.
with time as materialized (
    select {schema}.clock({now}::int8) as now
), given as materialized (
    select given.*, time.now
    from time cross join unnest({queues}::text[], {ranks}::int8[], {ats}::int8[], {seqs}::int8[], {lines}::text[], {tokens}::text[])
        with ordinality as given (queue, rank, available_at, seq, line, token, number)
), standing as materialized (
    select given.number, first.*
    from given cross join lateral (
        select ready.ctid as at_ctid, coalesce(ready.no, ready.seq) as no, ready.attempt, ready.retries, ready.expirations
        from {schema}.ready
        where given.line is null and ready.queue = given.queue and ready.rank = given.rank
            and ready.available_at = given.available_at and ready.seq = given.seq
        for update skip locked
    ) as first
), parked as materialized (
    select given.number, first.*
    from given cross join lateral (
        select parked.ctid as at_ctid, parked.no, parked.attempt, parked.retries, parked.expirations
        from {schema}.parked
        where given.line is not null and parked.queue = given.queue and parked.line = given.line::uuid
            and parked.rank = given.rank and parked.available_at = given.available_at and parked.seq = given.seq
        for update skip locked
    ) as first
), taken as (
    delete from {schema}.ready where ctid = any (array(select at_ctid from standing))
), taken_parked as (
    delete from {schema}.parked where ctid = any (array(select at_ctid from parked))
), {_kinds}, settled as materialized (
    select j.*, p.number, p.rank, p.seq, p.available_at, coalesce(p.attempt, 0) + 1 as attempt, p.retries, p.expirations, p.is_own,
        nextval('{schema}.fence') as fence, p.token, p.now, p.now + lease_us as expires_at,
        {_terms}
    from (
        select given.*, found.no, found.attempt, found.retries, found.expirations, queue.policy, {defaults}::int8[] as d,
            exists (select from {schema}.limits where limits.name = 'queue:' || given.queue offset 0) as is_own
        from (select * from standing union all select * from parked) as found join given on given.number = found.number
        cross join lateral (select queues.policy from {schema}.queues where queues.name = given.queue offset 0) as queue
        order by given.number
    ) as p
    cross join lateral (select * from {schema}.jobs where no = p.no offset 0) as j
    left join lateral (select policy from kinds where kind = j.kind offset 0) as k on true
    {_lease_us}
), {_grant}, held as (
    insert into {schema}.places (name, key, no, fence)
    select place.name, place.key, settled.no, settled.fence
    from unnest({place_numbers}::int8[], {place_names}::text[], {place_keys}::text[]) as place (number, name, key)
    join settled on settled.number = place.number
    on conflict (name, key, no) do update set fence = excluded.fence
)
select {_lease},
    case when (select count(*) from settled) < cardinality({seqs}::int8[]) or (
            select count(distinct name) from {schema}.limit_queues where queue = any ({claimed}::text[])
        ) <> cardinality({names}::text[])
        then {schema}.fail('40001', 'a job had changed before it was locked') end as failed
from settled as s
order by s.fence
