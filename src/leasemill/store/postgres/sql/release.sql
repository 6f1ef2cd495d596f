-- release: the job is READY again without a penalty, in its place or after a delay (C3, F3); it stays its lane's head.
-- Returns the jobs and their places. What is committed or not held is left to `decided.py`.
-- Locks the leases' rows, in order.
with given as materialized (
    select job.no, job.id, given.token, given.delay_us
    from unnest(%(ids)b::text[], %(tokens)b::text[], %(delays)b::int8[]) with ordinality as given (id, token, delay_us, turn)
    cross join lateral (select jobs.no, jobs.id from leasemill.jobs where jobs.id = given.id offset 0) as job
    order by job.no
), held as materialized (
    select lease.*, given.id, given.delay_us, leasemill.clock(%(now)b::int8) as now
    from given cross join lateral (
        select leases.* from leasemill.leases
        where leases.no = given.no and leases.token = given.token and leases.lane_offset is null
            and leases.status <> 'committed'
            and leases.expires_at > leasemill.clock(%(now)b::int8)
        for update
    ) as lease
), released as materialized (
    select *, coalesce(now + delay_us, available_at) as due_at from held
), gone as (
    delete from leasemill.leases where no = any (array(select no from held))
), kept as (
    insert into leasemill.executions (no, slot, attempt, seq, available_at, retries, expirations, fence, token, worker,
        request_id, leased_at, expires_at, terms, started_at, finished_at, ended_by, reason, error,
        kept_report_id, kept_retries)
    select no, attempt, attempt, seq, due_at, retries, expirations, fence, token, worker, request_id, leased_at,
        expires_at, terms, started_at, now, 'release', 'released', error, kept_report_id, kept_retries
    from released
), made_ready as (
    insert into leasemill.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
    select queue, rank, due_at, seq, no, attempt, retries, expirations from released
)
select id, queue, rank, due_at as available_at, seq from released
