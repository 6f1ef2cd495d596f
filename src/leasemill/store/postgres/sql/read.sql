-- Jobs as they stand, by number or by id: the job, its live lease, its executions, its marks and refusals.
-- One statement, so one moment. Locks nothing.
with given as materialized (
    select no from unnest({nos}::int8[]) as given (no)
    union
    select job.no from unnest({ids}::text[]) as given (id)
    cross join lateral (select jobs.no from {schema}.jobs where jobs.id = given.id offset 0) as job
)
select job.id, job.queue, job.kind, job.payload, job.lane, job.priority, job.run_at, job.delay_us, job.policy,
    job.lane_offset, job.no, job.created_at, lease.content, kept.content, mark.content, executions.content,
    refusals.content, cancellation.content
from given
cross join lateral (select * from {schema}.jobs where jobs.no = given.no offset 0) as job
left join lateral (
    select json_build_array(coalesce(seq, no), available_at, attempt, coalesce(retries, 0), coalesce(expirations, 0), fence,
        token, worker, request_id, leased_at, coalesce(updated_at, leased_at), expires_at, terms, started_at, committed_at,
        result, error, kept_report_id, kept_retries
    )::text as content
    from {schema}.leases where leases.no = given.no offset 0
) as lease on true
left join lateral (
    select json_build_array(seq, state, available_at, updated_at, retries, expirations, blocks_lane
    )::text as content
    from {schema}.kept where kept.no = given.no offset 0
) as kept on true
left join lateral (
    select json_build_array(seq, redriven_attempt, redriven_at)::text as content
    from {schema}.marks where marks.no = given.no offset 0
) as mark on true
left join lateral (
    select json_build_array(at, by_whom, reason)::text as content
    from {schema}.cancellations where cancellations.no = given.no offset 0
) as cancellation on true
left join lateral (
    select json_agg(json_build_array(slot, attempt, available_at, coalesce(retries, 0), coalesce(expirations, 0), fence,
        token, worker, request_id, leased_at, expires_at, terms, started_at, committed_at, finished_at, ended_by, committed_by, reason, is_final,
        retry_at, result, error, kept_report_id, kept_retries) order by attempt)::text as content
    from {schema}.executions where executions.no = given.no
) as executions on true
left join lateral (
    select json_agg(json_build_array(verb, token, worker, attempt, current_attempt, reason, at) order by number
    )::text as content
    from {schema}.refusals where refusals.no = given.no
) as refusals on true
