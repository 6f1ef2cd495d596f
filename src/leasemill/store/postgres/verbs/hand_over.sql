-- hand over: the next job of each lane becomes its head, as in `advance`; and if that is all there is to claim, it is granted at
-- once (C8), without a place in the ready table. What is granted is what `claim` would grant: due, in a queue that is served, by
-- C2; and nothing, if there is another claimable job, or one that has had the token meant for it (I2), or if the request was
-- granted leases before (C5): those are for the claim that follows.
-- Runs after `ack`, in the same transaction, which has locked the lanes. Looks for others from the given places or, where
-- none is given, from the watermark. I5: the terms are settled here. C5: a row in requests, as for any claim.
-- Returns the new heads with their leases, if granted, by fence; and whether there are arrivals to admit.
with gate as materialized (
    select {_alone}, {schema}.clock({now}::int8) as now
), {_next_in_lanes}, served as materialized (
    select name, turn, q.policy
    from unnest({served}::text[]) with ordinality as served (name, turn)
    cross join lateral (
        select policy from {schema}.queues
        where queues.name = served.name and mode <> 'acquire' and not is_paused and not is_limited offset 0
    ) as q
), others as materialized (
    select r.seq
    from gate cross join served
    join unnest({queues}::text[], {ranks}::int8[], {from_ats}::int8[], {from_seqs}::int8[])
        as place (queue, rank, from_at, from_seq) on place.queue = served.name
    cross join lateral (
        select ready.seq from {schema}.ready
        where ready.queue = place.queue and ready.rank = place.rank and available_at <= now
            and (available_at, ready.seq) >= (coalesce(from_at, (
                select low_at from {schema}.watermarks as w
                where w.queue = place.queue and w.rank = place.rank and low_at <= now
            ), 0), from_seq)
        limit 1
    ) as r
    limit 1
), numbered as (
    select next.*, served.policy, now, row_number() over (order by served.turn, rank, available_at, seq) as number
    from gate cross join next join served on served.name = next.queue
    where available_at <= now and not exists (select from others)
), picked as materialized (
    select * from numbered
    where number <= {limit}::int8 and not exists (select from {schema}.requests where requests.id = {request_id}::text)
    and not exists (
        select from numbered as n
        where n.attempt > 0 and exists (
            select from {schema}.executions as e where e.no = n.no and e.token = ({tokens}::text[])[n.number]
        )
    )
), {_heads_replaced}, left_over as materialized (
    select * from next where no not in (select picked.no from picked)
), {_heads_ready}, {_kinds}, settled as materialized (
    select j.*, p.rank, p.seq, p.available_at, coalesce(p.attempt, 0) + 1 as attempt, p.retries, p.expirations,
        nextval('{schema}.fence') as fence, ({tokens}::text[])[number] as token, now, now + lease_us as expires_at,
        {_terms}, null::bool as is_own
    from (select *, {defaults}::int8[] as d from picked order by number) as p
    cross join lateral (select * from {schema}.jobs where no = p.no offset 0) as j
    left join lateral (select policy from kinds where kind = j.kind offset 0) as k on true
    {_lease_us}
), {_grant}
select {_lease}, exists (select from {schema}.arrivals) as has_arrived,
    next.queue, next.lane, next.rank, next.available_at, next.seq,
    coalesce(s.id, (select jobs.id from {schema}.jobs where jobs.no = next.no))
from next left join settled as s on s.no = next.no left join lowered on true
order by s.fence
