-- Executions that have ended, and for retention those that succeeded.
with saved as (
    insert into {schema}.executions (
        no, slot, attempt, available_at, retries, expirations, fence, token, worker, request_id, leased_at,
        expires_at, terms, started_at, committed_at, finished_at, ended_by, committed_by, reason, is_final, retry_at,
        result, error, kept_report_id, kept_retries
    )
    select
        no, slot, attempt, available_at, nullif(retries, 0), nullif(expirations, 0), fence, token, worker, request_id,
        leased_at, expires_at, terms::int8[], started_at, committed_at, finished_at, ended_by, committed_by, reason,
        is_final::bool, retry_at, result, error, kept_report_id, kept_retries
    from unnest(
        {no}::int8[], {slot}::int8[], {attempt}::int8[], {available_at}::int8[],
        {retries}::int8[], {expirations}::int8[], {fence}::int8[], {token}::text[], {worker}::text[],
        {request_id}::text[], {leased_at}::int8[], {expires_at}::int8[], {terms}::text[],
        {started_at}::int8[], {committed_at}::int8[], {finished_at}::int8[], {ended_by}::text[],
        {committed_by}::text[], {reason}::text[], {is_final}::text[], {retry_at}::int8[], {result}::text[],
        {error}::text[], {kept_report_id}::text[], {kept_retries}::int8[]
    ) with ordinality as given (
        no, slot, attempt, available_at, retries, expirations, fence, token, worker, request_id, leased_at,
        expires_at, terms, started_at, committed_at, finished_at, ended_by, committed_by, reason, is_final, retry_at,
        result, error, kept_report_id, kept_retries, turn_given
    )
    order by turn_given
    returning no, slot, finished_at
)
insert into {schema}.finished (at, count, nos)
select finished_at, count(*), array_agg(no) from saved where slot = 0 group by finished_at
