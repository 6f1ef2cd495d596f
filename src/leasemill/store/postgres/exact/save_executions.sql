-- Executions that have ended, and for retention those that succeeded.
with saved as (
    insert into leasemill.executions (
        no, slot, attempt, available_at, retries, expirations, fence, token, worker, request_id, leased_at,
        expires_at, terms, started_at, committed_at, finished_at, ended_by, committed_by, reason, is_final, retry_at,
        result, error, kept_report_id, kept_retries
    )
    select
        no, slot, attempt, available_at, nullif(retries, 0), nullif(expirations, 0), fence, token, worker, request_id,
        leased_at, expires_at, terms::int8[], started_at, committed_at, finished_at, ended_by, committed_by, reason,
        is_final::bool, retry_at, result, error, kept_report_id, kept_retries
    from unnest(
        %(no)b::int8[], %(slot)b::int8[], %(attempt)b::int8[], %(available_at)b::int8[],
        %(retries)b::int8[], %(expirations)b::int8[], %(fence)b::int8[], %(token)b::text[], %(worker)b::text[],
        %(request_id)b::text[], %(leased_at)b::int8[], %(expires_at)b::int8[], %(terms)b::text[],
        %(started_at)b::int8[], %(committed_at)b::int8[], %(finished_at)b::int8[], %(ended_by)b::text[],
        %(committed_by)b::text[], %(reason)b::text[], %(is_final)b::text[], %(retry_at)b::int8[], %(result)b::text[],
        %(error)b::text[], %(kept_report_id)b::text[], %(kept_retries)b::int8[]
    ) with ordinality as given (
        no, slot, attempt, available_at, retries, expirations, fence, token, worker, request_id, leased_at,
        expires_at, terms, started_at, committed_at, finished_at, ended_by, committed_by, reason, is_final, retry_at,
        result, error, kept_report_id, kept_retries, turn_given
    )
    order by turn_given
    returning no, slot, finished_at
)
insert into leasemill.finished (at, count, nos)
select finished_at, count(*), array_agg(no) from saved where slot = 0 group by finished_at
