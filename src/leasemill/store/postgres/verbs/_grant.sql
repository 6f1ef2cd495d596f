-- The leases of `settled` are written, and for C5 the request that asked for them: it fails if the same request has
-- committed since the snapshot of this statement was taken. T1: the leases of a queue with a limit of its own count as its places.
granted as (
    insert into {schema}.leases (no, queue, lane, rank, seq, available_at, attempt, retries, expirations, fence, token,
        worker, request_id, leased_at, expires_at, terms, is_limited)
    select no, queue, lane, rank, nullif(seq, no), available_at, attempt, nullif(retries, 0), nullif(expirations, 0),
        fence, token, {worker}::text, {request_id}::text, now, expires_at, terms, nullif(is_own, false)
    from settled
), asked as (
    insert into {schema}.requests as r (id, forget_at, nos)
    select {request_id}::text, min(now) + 60000000, array_agg(no) from settled
    having count(*) > 0 and {request_id}::text is not null
    on conflict (id) do update set forget_at = excluded.forget_at, nos = case
        when exists (select from {schema}.requests as seen where seen.id = excluded.id)
        then (excluded.nos || r.nos)[:20000]
        else array[{schema}.fail('40001', 'the same claim was granted leases at the same time')::int8] end
)
