-- claim: leases on the first claimable jobs, queue by queue in the caller's order, priority by priority.
-- C1, C2: due, not paused; by priority, available_at, sequence. C5: a repeated request gets its held leases and no others,
-- found by its row in requests. I2: stops before a job that has had the token meant for it. I5: the terms are settled here.
-- Looks from the given places or, where none is given, from the watermark.
-- Returns the leases with their jobs, in no order; fences are drawn in the order of number, which no join here may change. With
-- each, or in a row without a lease, what the claim saw: the time, whether there are arrivals to admit, whether leases have expired
-- (looked for if nothing was granted), which queues were looked through (null: all; none, where it stopped), and which have limits:
-- those it leaves alone. NULL: it was a repeat, and did not look.
-- Locks the ready rows it takes; skips those others hold.
with gate as materialized (
    select {_alone}, {schema}.clock({now}::int8) as now
), repeated as materialized (
    select l.* from gate cross join {schema}.requests as r cross join lateral (
        select * from {schema}.leases where no = any (r.nos) and request_id = r.id offset 0
    ) as l
    where r.id = {request_id}::text and expires_at > now
), place as materialized (  -- one for each queue and rank: where to begin, in the order in which the claim is served
    select place.queue, rank, turn, policy, now, from_seq, coalesce(from_at, (
        select low_at from {schema}.watermarks as w where w.queue = place.queue and w.rank = place.rank and low_at <= now
    ), 0) as from_at
    from gate cross join unnest({queues}::text[], {ranks}::int8[], {from_ats}::int8[], {from_seqs}::int8[])
        with ordinality as place (queue, rank, from_at, from_seq, turn)
    cross join lateral (
        select policy from {schema}.queues
        where name = place.queue and mode <> 'acquire' and not is_paused and not is_limited offset 0
    ) as q
    where not exists (select from repeated)
    order by turn
), claimable as materialized (  -- an index scan from each place; the limit outside ends the scans behind the last job
    select turn, policy, now, first.*
    from place cross join lateral (
        select r.ctid as at_ctid, r.rank, available_at, seq, coalesce(no, seq) as no, attempt, retries, expirations
        from {schema}.ready as r
        where r.queue = place.queue and r.rank = place.rank and available_at <= now
            and (available_at, seq) >= (from_at, from_seq)
        order by available_at, seq
        limit {limit}::int8
        for update skip locked
    ) as first
    limit {limit}::int8
), numbered as (
    select *, row_number() over (order by turn, available_at, seq) as number from claimable
), stop as (  -- I2: jobs before this one are granted, it and those behind it are not
    select min(number) as number
    from numbered as n cross join lateral (
        select from {schema}.executions as e
        where e.no = n.no and e.token = ({tokens}::text[])[number]
        offset 0
    ) as spent
    where attempt > 0
), picked as materialized (
    select * from numbered where number < coalesce((select number from stop), number + 1)
), taken as (  -- by ctid: the rows are locked, and cannot have moved
    delete from {schema}.ready where ctid = any (array(select at_ctid from picked))
), {_kinds}, settled as materialized (
    select j.*, rank, seq, available_at, coalesce(attempt, 0) + 1 as attempt, retries, expirations,
        nextval('{schema}.fence') as fence, token, now, now + lease_us as expires_at,
        {_terms}, null::bool as is_own
    from (
        select *, {defaults}::int8[] as d
        from picked join unnest({tokens}::text[]) with ordinality as given (token, number) using (number) order by number
    ) as p
    cross join lateral (select * from {schema}.jobs where no = p.no offset 0) as j
    left join lateral (select policy from kinds where kind = j.kind offset 0) as k on true
    {_lease_us}
), {_grant}, come as materialized (
    select json_build_array(
        now, exists (select from {schema}.arrivals), {_has_expired},
        case when (select number from stop) is not null then '{{}}'::text[]
            when (select count(*) from place) < cardinality({queues}::text[]) then array(select distinct queue from place)
            end,
        case when (select count(*) from place) < cardinality({queues}::text[])
            then array(select name from {schema}.queues where name = any ({queues}::text[]) and is_limited) end
    )::text as seen
    from gate
)
select {_lease},
    come.seen
from come left join settled as s on true
union all
select id, j.queue, kind, payload, j.lane, run_at, delay_us, policy, headers, rules, token, worker, terms,
    array[priority, attempt, fence, leased_at, expires_at, coalesce(retries, 0), coalesce(expirations, 0), created_at,
        available_at, seq, j.no]::int8[],
    null
from repeated as l
cross join lateral (select * from {schema}.jobs where no = l.no offset 0) as j
