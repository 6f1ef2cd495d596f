-- commit, as the last statement of a user's transaction, in one message with COMMIT: where commit.sql returns no row, this
-- fails, so that COMMIT is not carried out. Locks the lease's row.
with marked as (
    update {schema}.leases
    set started_at = coalesce(started_at, {schema}.clock({now}::int8)),
        committed_at = {schema}.clock({now}::int8), updated_at = {schema}.clock({now}::int8),
        result = {result}::text
    where no = (select jobs.no from {schema}.jobs where jobs.id = {id}::text)
        and token = {token}::text and committed_at is null and expires_at > {schema}.clock({now}::int8)
    returning no
)
select case count(*) when 1 then 1 else ('leasemill: not held, ' || count(*))::int8 end from marked
