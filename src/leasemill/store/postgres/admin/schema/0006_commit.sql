-- commit as a function, and what a user's transaction asks at its two ends. Their plans stay with the session, so that the
-- messages around a user's transaction need no prepared statements. Creates functions, and locks no table: safe while
-- workers run. docs/postgres.md lists the errors they raise.

-- commit: the marker and the result, once, while the lease is held (X4, X6). Returns whether it was held and had not
-- committed. `must_hold`: fails with LM001 if not, so that a COMMIT in the same message is not carried out.
-- Locks the lease's row.
create function {schema}.commit_lease(job_id text, lease_token text, job_result text, now int8, must_hold bool)
returns bool language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $commit_lease$
declare
    at constant int8 := {schema}.clock(now);
begin
    update {schema}.leases
    set started_at = coalesce(started_at, at), committed_at = at, updated_at = at, result = job_result
    where no = (select jobs.no from {schema}.jobs where jobs.id = job_id)
        and token = lease_token and committed_at is null and expires_at > at;
    if must_hold and not found then
        raise exception using errcode = 'LM001', message = format(
            'the lease of job %L is not held, or has committed: nothing was committed', job_id);
    end if;
    return found;
end
$commit_lease$;

-- The early look of a user's commit: whether its lease is held, or has committed. Returns which, or null; locks nothing.
create function {schema}.lease_status(job_id text, lease_token text, now int8)
returns text language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $lease_status$
begin
    return (
        select case when committed_at is null then 'held' else 'committed' end
        from {schema}.leases
        where no = (select jobs.no from {schema}.jobs where jobs.id = job_id)
            and token = lease_token and (committed_at is not null or expires_at > {schema}.clock(now))
    );
end
$lease_status$;

-- What RESET ALL and its like leave of a user's block in its session: releases the advisory locks, and returns whether
-- there are prepared statements of the user's. Those psycopg made are not SQL's.
create function {schema}.is_session_used() returns bool language plpgsql as $is_session_used$
begin
    perform pg_catalog.pg_advisory_unlock_all();
    return exists (select from pg_catalog.pg_prepared_statements as one where one.from_sql);
end
$is_session_used$;
