-- nack: a failure with a retry left makes the job READY again after its back-off (F1, F2, F5); it stays its lane's head.
-- Returns retries and when it is due. What is final, committed or not held is left to the exact path.
-- Locks the leases' rows, in order.
with held as (
    delete from {schema}.leases
    where no = any ({nos}::int8[])
        and token = ({tokens}::text[])[width_bucket(no, {nos}::int8[])]
        and lane_offset is null and committed_at is null and coalesce(retries, 0) < coalesce(terms[1], ({unwritten}::int8[])[1])
        and expires_at > {schema}.clock({now}::int8)
    returning leases.*, coalesce(seq, no) as place, coalesce(retries, 0) + 1 as failures, (select {schema}.clock({now}::int8)) as now, width_bucket(no, {nos}::int8[]) as number
), failed as (
    select *, now + coalesce(({delays}::int8[])[number], trunc(({jitters}::text[])[number]::float8 * least(
        coalesce(terms[5], ({unwritten}::int8[])[5])::float8 * 2::float8 ^ least(failures - 1, {longest_exponent}::int8),
        coalesce(terms[6], ({unwritten}::int8[])[6])::float8
    ))::int8) as due_at
    from held
), kept as (
    insert into {schema}.executions (no, slot, attempt, available_at, retries, expirations, fence, token, worker,
        request_id, leased_at, expires_at, terms, started_at, finished_at, ended_by, reason, retry_at, error,
        kept_report_id, kept_retries)
    select no, attempt, attempt, due_at, failures, expirations, fence, token, worker, request_id, leased_at,
        expires_at, terms, coalesce(started_at, now), now, 'nack', 'failed', due_at, ({errors}::text[])[number],
        kept_report_id, kept_retries
    from failed
), made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
    select queue, rank, due_at, place, nullif(no, place), attempt, failures, expirations from failed
)
select no, failures as retries, due_at as available_at, queue, rank, place as seq from failed
