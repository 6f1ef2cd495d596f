-- ack of heads of lanes, first step: held leases end DONE, as in ack.sql. `advance` follows in the same transaction.
-- Returns the jobs of lanes, and whether their leases were held. Locks the lanes, in order, then the leases' rows, in order.
with given as materialized (
    select job.no, job.id, job.queue, job.lane, given.token, given.result
    from unnest(%(ids)b::text[], %(tokens)b::text[], %(results)b::text[]) as given (id, token, result)
    cross join lateral (
        select jobs.no, jobs.id, jobs.queue, jobs.lane from leasemill.jobs
        where jobs.id = given.id and jobs.lane is not null and jobs.lane_offset is null
        offset 0
    ) as job
    order by job.queue, job.lane
), locked as materialized (
    select given.* from given cross join lateral (
        select from leasemill.lanes where lanes.queue = given.queue and lanes.lane = given.lane for update
    ) as lane
), sorted as materialized (
    select * from locked order by no
), held as materialized (
    select lease.*, given.id, given.result as given_result, leasemill.clock(%(now)b::int8) as now
    from sorted as given cross join lateral (
        select leases.* from leasemill.leases
        where leases.no = given.no and leases.token = given.token
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
select given.id, given.queue, given.lane, given.no in (select no from held) as is_held from given
