-- release: the job is READY again without a penalty, in its place or after a delay (C3, F3); it stays its lane's head.
-- The reason, if there is one, is kept with the execution.
-- Returns the jobs and their places. What is committed or not held is left to the exact path.
-- Locks the leases' rows, in order.
with held as (
    delete from {schema}.leases
    where no = any ({nos}::int8[])
        and token = ({tokens}::text[])[width_bucket(no, {nos}::int8[])]
        and lane_offset is null and committed_at is null
        and expires_at > {schema}.clock({now}::int8)
    returning leases.*, (select {schema}.clock({now}::int8)) as now, width_bucket(no, {nos}::int8[]) as number
), released as (
    select *, coalesce(now + ({delays}::int8[])[number], available_at) as due_at, coalesce(seq, no) as place from held
), kept as (
    insert into {schema}.executions (no, slot, attempt, available_at, retries, expirations, fence, token, worker,
        request_id, leased_at, expires_at, terms, started_at, finished_at, ended_by, reason, error,
        kept_report_id, kept_retries)
    select no, attempt, attempt, due_at, retries, expirations, fence, token, worker, request_id, leased_at,
        expires_at, terms, started_at, now, 'release', 'released',
        coalesce(({errors}::text[])[number], error), kept_report_id, kept_retries
    from released
), made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
    select queue, rank, due_at, place, nullif(no, place), attempt, retries, expirations from released
), lowered as materialized (
    select {schema}.lower_watermarks(array_agg(queue), array_agg(rank::int8), array_agg(due_at)) from released
)
select no, queue, rank, due_at as available_at, place as seq from released cross join lowered
