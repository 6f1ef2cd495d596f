-- acquire of one offset in a lane that is known. New: it is the lane's head and leased if nothing is in flight and nothing
-- waits; behind a head that is held it lines up (N11). At the head and waiting for the first time: leased. I5, N9: the terms
-- are settled here; time ends the lease only where somebody asked for a time.
-- Returns the job and, if it is leased, the lease; or nothing: then `decided.py` decides. Locks the lane's row. Who waited
-- for it sees the row as it is now, but leases and ready jobs as they were before: what came meanwhile is not found.
with lane as materialized (
    select queue, lane, head, head_seq from {schema}.lanes
    where queue = {queue}::text and lane = {lane}::text
        and not coalesce(finished @> {offset}::int8, false) and not coalesce(failed @> {offset}::int8, false)
    for update
), begun as materialized (
    select lane.*, {schema}.clock({now}::int8) as now, queues.policy as asked
    from lane cross join lateral (
        select policy from {schema}.queues where name = lane.queue and mode = 'acquire' offset 0
    ) as queues
), made as (
    insert into {schema}.jobs (created_at, priority, id, queue, kind, payload, lane, lane_offset, policy)
    select now, 0, {id}::text, queue, {kind}::text, {payload}::text, lane, {offset}::int8,
        {policy}::text::int8[]
    from begun
    where head is null
        or (select lane_offset <> {offset}::int8 and expires_at > now from {schema}.leases where no = head)
    on conflict on constraint job_id do nothing
    returning *
), headed as (
    update {schema}.lanes set head = (select no from made), head_seq = (select no from made)
    where queue = {queue}::text and lane = {lane}::text
        and exists (select from made) and (select head from begun) is null
), lined_up as (
    insert into {schema}.waiting (queue, lane, turn, no, seq, rank, available_at, attempt, retries, expirations)
    select made.queue, made.lane, nextval('{schema}.turn'), no, no, 9, created_at, 0, 0, 0
    from made cross join begun where head is not null
), next as materialized (
    select job.*, head_seq as seq, now, asked, first.at_ctid
    from begun cross join lateral (
        select * from {schema}.jobs where no = begun.head and lane_offset = {offset}::int8 offset 0
    ) as job
    cross join lateral (
        select ready.ctid as at_ctid from {schema}.ready
        where queue = job.queue and rank = 9 and available_at = job.created_at and seq = head_seq and attempt is null
        offset 0
    ) as first
), taken as (
    delete from {schema}.ready where ctid = any (array(select at_ctid from next)) returning seq
), held as materialized (
    select made.*, no as seq, now, asked from made cross join begun where head is null
    union all
    select no, created_at, priority, id, queue, kind, payload, lane, lane_offset, run_at, delay_us, policy, seq, now, asked
    from next join taken using (seq)
), granted as (
    insert into {schema}.leases (no, seq, available_at, fence, leased_at, expires_at, attempt, rank, queue, token, worker,
        lane, lane_offset, terms)
    select no, nullif(seq, no), created_at, nextval('{schema}.fence'), now,
        coalesce(now + lease_us, 9223372036854775807), 1, 9, queue, {token}::text, {worker}::text, lane, lane_offset,
        nullif(array[
            coalesce(policy[1], asked[1], ({defaults}::int8[])[1]),
            coalesce(lease_us, 9223372036854775807),
            case when lease_us is null then 9223372036854775807 else coalesce(policy[3], asked[3], {timeout_leases}::int8 * lease_us) end,
            coalesce(policy[4], asked[4], ({defaults}::int8[])[4]),
            coalesce(policy[5], asked[5], ({defaults}::int8[])[5]),
            coalesce(policy[6], asked[6], ({defaults}::int8[])[6]),
            coalesce(policy[7], asked[7], ({defaults}::int8[])[7])
        ], {null_terms}::int8[])
    from held cross join lateral (select coalesce(policy[2], asked[2]) as lease_us) as term
    returning no, fence, leased_at, expires_at, terms
)
select id, queue, kind, payload, lane, priority, run_at, delay_us, policy, lane_offset, created_at, no, fence, leased_at,
    expires_at, terms
from held join granted using (no)
union all
select id, queue, kind, payload, lane, priority, run_at, delay_us, policy, lane_offset, created_at, no, null, null, null, null
from made where (select head from begun) is not null
