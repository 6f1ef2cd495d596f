-- nack: a failure with a retry left makes the job READY again after its back-off (F1, F2, F5); it stays its lane's head.
-- Returns retries and when it is due. What is final, committed or not held is left to `decided.py`.
-- Locks the leases' rows, in order.
with given as materialized (
    select job.no, job.id, given.token, given.error, given.jitter::float8 as jitter, given.delay_us
    from unnest(
        %(ids)b::text[], %(tokens)b::text[], %(errors)b::text[], %(jitters)b::text[], %(delays)b::int8[]
    ) with ordinality as given (id, token, error, jitter, delay_us, turn)
    cross join lateral (select jobs.no, jobs.id from leasemill.jobs where jobs.id = given.id offset 0) as job
    order by job.no
), held as materialized (
    select lease.*, given.id, given.error as given_error, given.jitter, given.delay_us, leasemill.clock(%(now)b::int8) as now
    from given cross join lateral (
        select leases.* from leasemill.leases
        where leases.no = given.no and leases.token = given.token
            and leases.lane_offset is null and leases.status <> 'committed'
            and leases.retries < coalesce(leases.terms[1], 3)
            and leases.expires_at > leasemill.clock(%(now)b::int8)
        for update
    ) as lease
), failed as materialized (
    select *, now + coalesce(delay_us, trunc(jitter * least(
        coalesce(terms[5], 500000)::float8 * 2::float8 ^ least(retries, 40), coalesce(terms[6], 30000000)::float8
    ))::int8) as due_at
    from held
), gone as (
    delete from leasemill.leases where no = any (array(select no from held))
), kept as (
    insert into leasemill.executions (no, slot, attempt, seq, available_at, retries, expirations, fence, token, worker,
        request_id, leased_at, expires_at, terms, started_at, finished_at, ended_by, reason, retry_at, error,
        kept_report_id, kept_retries)
    select no, attempt, attempt, seq, due_at, retries + 1, expirations, fence, token, worker, request_id, leased_at,
        expires_at, terms, coalesce(started_at, now), now, 'nack', 'failed', due_at, given_error,
        kept_report_id, kept_retries
    from failed
), made_ready as (
    insert into leasemill.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
    select queue, rank, due_at, seq, no, attempt, retries + 1, expirations from failed
)
select id, retries + 1 as retries, due_at as available_at, queue, rank, seq from failed
