-- ack: held leases of jobs without a lane end DONE; an earlier commit stands, whatever the time (L6, X7).
-- O9: who waits for one of them is notified (also for one that was not held: then for nothing).
-- Returns how many it ended and, if not all, which; the rest is decided by `decided.py`. Locks the leases' rows, in order.
with ended as (
    delete from {schema}.leases
    where no = any ({nos}::int8[])
        and token = ({tokens}::text[])[width_bucket(no, {nos}::int8[])] and lane is null
        and (committed_at is not null or expires_at > {schema}.clock({now}::int8))
    returning leases.*, (select {schema}.clock({now}::int8)) as now,
        ({results}::text[])[width_bucket(no, {nos}::int8[])] as given_result
), kept as (
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
)
select count(*) as count, case when count(*) < cardinality({nos}::int8[]) then array_agg(no) end as nos,
    (select count(pg_notify(channel, no::text)) from {schema}.waiters where no = any ({nos}::int8[])) as notified
from ended
