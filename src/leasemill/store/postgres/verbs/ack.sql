-- ack: held leases end DONE; an earlier commit stands, whatever the time (L6, X7). Those of heads of lanes only if their lanes
-- are given: then `advance` follows in the same transaction. Offsets are left to the exact path.
-- O9: who waits for one of them is notified (also for one that was not held: then for nothing).
-- `ack_members` is for members of groups without lanes or chains: it counts them too (B1), after their leases, the groups in
-- order; and fails if a sealed group has no more members unfinished than may have been added since (B2).
-- `ack_all` fails if one of them is not held: what was sent along with it is not carried out.
-- `ack_all_and_lock` also locks limits for the claim that follows, if nobody else has, and returns whether it did.
-- Returns how many it ended and, if not all, which. Locks the lanes, in order, then the leases' rows, in order.
with locked as materialized (
    select lane.queue, lane.lane
    from (
        select queue, lane from unnest({lane_queues}::text[], {lanes}::text[]) as given (queue, lane) order by queue, lane
    ) as given
    cross join lateral (
        select lanes.queue, lanes.lane from {schema}.lanes
        where lanes.queue = given.queue and lanes.lane = given.lane for update
    ) as lane
), ended as (
    delete from {schema}.leases
    where no = any ({nos}::int8[])
        and ((no, token) in (select * from unnest({nos}::int8[], {tokens}::text[]))) is true
        and (lane is null or (queue, lane) in (select locked.queue, locked.lane from locked)) and lane_offset is null
        and (committed_at is not null or expires_at > {schema}.clock({now}::int8))
    returning leases.*, (select {schema}.clock({now}::int8)) as now,
        ({results}::text[])[width_bucket(no, {nos}::int8[])] as given_result
), saved as (
    insert into {schema}.executions (no, slot, attempt, available_at, retries, expirations, fence, token, worker,
        request_id, leased_at, expires_at, terms, started_at, committed_at, finished_at, ended_by, committed_by, result,
        kept_report_id, kept_retries)
    select no, 0, attempt, available_at, retries, expirations, fence, token, worker, request_id, leased_at, expires_at,
        terms, coalesce(started_at, now), coalesce(committed_at, now), now, 'ack',
        case when committed_at is null then 'ack' else 'commit' end,
        case when committed_at is null then given_result else result end, kept_report_id, kept_retries
    from ended
), finished as (
    insert into {schema}.finished (at, count, nos) select now, count(*), array_agg(no) from ended group by now
), counted as (
    insert into {schema}.tallies (queue, succeeded) select queue, count(*) from ended group by queue
){members}
select count(*) as count, case when count(*) < cardinality({nos}::int8[]) then array_agg(no) end as nos,
    (select count(pg_notify(channel, no::text)) from {schema}.waiters where no = any ({nos}::int8[])) as notified{members_counted}{all_or_none}
from ended
