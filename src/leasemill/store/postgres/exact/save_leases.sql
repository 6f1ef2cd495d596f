-- Live executions.
insert into {schema}.leases (
    no, queue, lane, lane_offset, rank, seq, available_at, attempt, retries, expirations, fence, token, worker,
    request_id, leased_at, updated_at, expires_at, terms, started_at, committed_at, result, error,
    kept_report_id, kept_retries
)
select
    no, queue, lane, lane_offset, rank, nullif(seq, no), available_at, attempt, nullif(retries, 0), nullif(expirations, 0),
    fence, token, worker, request_id, leased_at, nullif(updated_at, leased_at), expires_at, terms::int8[], started_at, committed_at, result, error,
    kept_report_id, kept_retries
from unnest(
    {no}::int8[], {queue}::text[], {lane}::text[], {lane_offset}::int8[], {rank}::int8[], {seq}::int8[],
    {available_at}::int8[], {attempt}::int8[], {retries}::int8[], {expirations}::int8[], {fence}::int8[],
    {token}::text[], {worker}::text[], {request_id}::text[], {leased_at}::int8[], {updated_at}::int8[],
    {expires_at}::int8[], {terms}::text[], {started_at}::int8[], {committed_at}::int8[],
    {result}::text[], {error}::text[], {kept_report_id}::text[], {kept_retries}::int8[]
) with ordinality as given (
    no, queue, lane, lane_offset, rank, seq, available_at, attempt, retries, expirations, fence, token, worker,
    request_id, leased_at, updated_at, expires_at, terms, started_at, committed_at, result, error,
    kept_report_id, kept_retries, turn_given
)
order by turn_given
