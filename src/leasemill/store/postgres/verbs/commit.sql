-- commit: the marker and the result, once, while the lease is held (X4, X6); in a user's transaction its last statement.
-- Returns the job if it was held and had not committed. Locks the lease's row.
update {schema}.leases
set started_at = coalesce(started_at, {schema}.clock({now}::int8)),
    committed_at = {schema}.clock({now}::int8), updated_at = {schema}.clock({now}::int8), result = {result}::text
where no = (select jobs.no from {schema}.jobs where jobs.id = {id}::text)
    and token = {token}::text and committed_at is null and expires_at > {schema}.clock({now}::int8)
returning no
