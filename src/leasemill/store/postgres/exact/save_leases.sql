-- Live executions.
insert into leasemill.leases (
    no, queue, lane, lane_offset, rank, seq, available_at, attempt, retries, expirations, fence, token, worker,
    request_id, leased_at, updated_at, expires_at, terms, started_at, committed_at, result, error,
    kept_report_id, kept_retries
)
select
    no, queue, lane, lane_offset, rank, nullif(seq, no), available_at, attempt, nullif(retries, 0), nullif(expirations, 0),
    fence, token, worker, request_id, leased_at, nullif(updated_at, leased_at), expires_at, terms::int8[], started_at, committed_at, result, error,
    kept_report_id, kept_retries
from unnest(
    %(no)b::int8[], %(queue)b::text[], %(lane)b::text[], %(lane_offset)b::int8[], %(rank)b::int8[], %(seq)b::int8[],
    %(available_at)b::int8[], %(attempt)b::int8[], %(retries)b::int8[], %(expirations)b::int8[], %(fence)b::int8[],
    %(token)b::text[], %(worker)b::text[], %(request_id)b::text[], %(leased_at)b::int8[], %(updated_at)b::int8[],
    %(expires_at)b::int8[], %(terms)b::text[], %(started_at)b::int8[], %(committed_at)b::int8[],
    %(result)b::text[], %(error)b::text[], %(kept_report_id)b::text[], %(kept_retries)b::int8[]
) with ordinality as given (
    no, queue, lane, lane_offset, rank, seq, available_at, attempt, retries, expirations, fence, token, worker,
    request_id, leased_at, updated_at, expires_at, terms, started_at, committed_at, result, error,
    kept_report_id, kept_retries, turn_given
)
order by turn_given
