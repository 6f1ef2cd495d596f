-- ack: held leases of jobs without a lane end DONE; an earlier commit stands, whatever the time (L6, X7).
-- Returns the jobs it ended; the rest is decided by `decided.py`. Locks the leases' rows, in order.
with given as materialized (
    select job.no, job.id, given.token, given.result
    from unnest(%(ids)b::text[], %(tokens)b::text[], %(results)b::text[]) with ordinality as given (id, token, result, turn)
    cross join lateral (select jobs.no, jobs.id from leasemill.jobs where jobs.id = given.id offset 0) as job
    order by job.no
), held as materialized (
    select lease.*, given.id, given.result as given_result, leasemill.clock(%(now)b::int8) as now
    from given cross join lateral (
        select leases.* from leasemill.leases
        where leases.no = given.no and leases.token = given.token and leases.lane is null
            and (leases.status = 'committed' or leases.expires_at > leasemill.clock(%(now)b::int8))
        for update
    ) as lease
), gone as (
    delete from leasemill.leases where no = any (array(select no from held))
), kept as (
    insert into leasemill.executions (no, slot, attempt, seq, available_at, retries, expirations, fence, token, worker,
        request_id, leased_at, expires_at, terms, started_at, committed_at, finished_at, ended_by, committed_by, result,
        kept_report_id, kept_retries)
    select no, 0, attempt, seq, available_at, retries, expirations, fence, token, worker, request_id, leased_at, expires_at,
        terms, coalesce(started_at, now), coalesce(committed_at, now), now, 'ack',
        case when committed_at is null then 'ack' else 'commit' end,
        case when committed_at is null then given_result else result end, kept_report_id, kept_retries
    from held
), counted as (
    insert into leasemill.tallies (queue, succeeded) select queue, count(*) from held group by queue
)
select count(*) as count, case when count(*) < cardinality(%(ids)b::text[]) then array_agg(id) end as ids from held
