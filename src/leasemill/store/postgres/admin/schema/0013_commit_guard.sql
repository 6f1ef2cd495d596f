-- The commit's guard, for transactions of any driver, ORM or language. Creates a table and functions, and locks no other table: safe
-- while workers run. docs/postgres.md lists the errors.

-- What a transaction that is under way will mark as committed: a row from `guard` to COMMIT, never longer. So nothing is lost with an
-- unlogged table. Nothing else is written or locked before COMMIT, however long the transaction stays open.
create unlogged table {schema}.guards (
    job_id text collate "C",
    token text collate "C",
    result text,
    now int8,
    primary key (job_id, token)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

create function {schema}.mark_at_commit() returns trigger language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $mark_at_commit$
begin
    perform {schema}.commit_lease(new.job_id, new.token, new.result, new.now, true);
    delete from {schema}.guards where guards.job_id = new.job_id and guards.token = new.token;
    return null;
end
$mark_at_commit$;

create constraint trigger mark_at_commit after insert on {schema}.guards
deferrable initially deferred for each row execute function {schema}.mark_at_commit();

-- The transaction that calls this marks the job as committed when it commits, and fails with LM001 if the lease is not held then (X4).
-- Fails with LM001 at once if it is not held now.
create function {schema}.guard(job_id text, lease_token text, job_result text, now int8)
returns void language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $guard$
begin
    if {schema}.lease_status(job_id, lease_token, now) is distinct from 'held' then
        raise exception using errcode = 'LM001', message = format(
            'the lease of job %L is not held, or has committed: nothing was committed', job_id);
    end if;
    insert into {schema}.guards values (job_id, lease_token, job_result, now) on conflict do nothing;
    if not found then
        raise exception using errcode = 'LM001', message = format(
            'job %L commits in this transaction already: call commit once', job_id);
    end if;
end
$guard$;

-- For clients that are not Python: the guard, with follow-up jobs. Returns their ids, or those of the jobs that hold their unique keys.
create function {schema}.commit(job_id text, token text, result jsonb default null, followups jsonb default '[]')
returns text[] language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $commit$
declare
    stem constant text := case when length(job_id) <= 100 then job_id else left(encode(sha256(convert_to(job_id, 'UTF8')), 'hex'), 32) end;
    known constant text[] := array['queue', 'kind', 'payload', 'lane', 'priority', 'delay', 'run_at', 'unique_key',
        'unique_until', 'unique_keep', 'group_id', 'headers'];
    one jsonb;
    unknown text;
    ids text[] := '{{}}';
begin
    if job_id is null or token is null then
        raise exception using errcode = 'invalid_parameter_value', message = 'job_id and token must not be null';
    end if;
    if octet_length(result::text) > 1048576 then
        raise exception using errcode = 'invalid_parameter_value', message = 'result has more than 1,048,576 bytes';
    end if;
    if jsonb_typeof(followups) is distinct from 'array' or jsonb_array_length(followups) > 1000 then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'followups must be a JSON array of at most 1,000 objects';
    end if;
    perform {schema}.guard(job_id, token, result::text, null);
    for one in select jsonb_array_elements(followups) loop
        if jsonb_typeof(one) <> 'object' then
            raise exception using errcode = 'invalid_parameter_value',
                message = format('follow-up %s is not a JSON object', cardinality(ids));
        end if;
        select min(key) into unknown from jsonb_object_keys(one) as key where key <> all (known);
        if unknown is not null then
            raise exception using errcode = 'invalid_parameter_value', message = format(
                'follow-up %s has %L; it takes %s', cardinality(ids), unknown, array_to_string(known, ', '));
        end if;
        ids := ids || {schema}.enqueue(
            one ->> 'queue', one ->> 'kind', coalesce(one -> 'payload', '{{}}'), stem || '/' || cardinality(ids),
            one ->> 'lane', coalesce((one ->> 'priority')::int4, 0), (one ->> 'delay')::interval,
            (one ->> 'run_at')::timestamptz, one ->> 'unique_key', coalesce(one ->> 'unique_until', 'ended'),
            (one ->> 'unique_keep')::interval, one ->> 'group_id', one -> 'headers');  -- version 14's
    end loop;
    return ids;
end
$commit$;

comment on function {schema}.commit(text, text, jsonb, jsonb) is
    'This job takes effect with the transaction that calls this, once, if its lease is still held at COMMIT: else COMMIT fails with '
    'LM001. Returns the ids of the follow-up jobs.';

revoke all on function {schema}.guard(text, text, text, int8), {schema}.commit(text, text, jsonb, jsonb),
    {schema}.mark_at_commit() from public;
