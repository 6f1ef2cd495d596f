-- Unique keys and debounced jobs. Adds two columns without a default to jobs, creates a table and functions: locks jobs for a moment,
-- safe while workers run.

-- How often a job was replaced before its first claim, and when last (U8, U9); its payload, headers and run_at are then the
-- latest call's: the one case in which a row of jobs is updated.
alter table {schema}.jobs add column replaced int4, add column replaced_at int8;

-- Which job took a unique key last (0: none), and until when it is kept whatever becomes of the job (0: it is not). Whether a key
-- is held follows from the job's rows and the time: nothing releases one. Rows that hold nothing are deleted now and then.
create table {schema}.keys (
    key text collate "C" primary key,
    no int8 not null,
    until_at int8 not null,
    id text collate "C",  -- the job's, where the key is kept: the job may be forgotten first
    constraint key_kept check (until_at = 0 or id is not null)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);

-- U1 to U3: whether a key is held, as the caller's statement sees the job that took it.
create function {schema}.is_key_held(taker int8, until_at int8, now int8) returns bool language sql stable
return until_at > now or exists (
    select from {schema}.jobs
    where jobs.no = taker
        and not exists (select from {schema}.kept where kept.no = jobs.no)
        and not exists (select from {schema}.executions where executions.no = jobs.no and executions.slot <= 0)
        and (
            jobs.rules::json #>> '{{0,1}}' = 'ended'
            or not exists (select from {schema}.leases where leases.no = jobs.no)
                and not exists (select from {schema}.executions where executions.no = jobs.no)
                and not exists (select from {schema}.marks where marks.no = jobs.no)
        )
);

-- Makes and locks the rows of keys, in order; waits for whoever is about to take one, so that a rollback lets the next one in.
-- Of jobs that hold theirs until they are started, locks the row of ready too: claims pass over it until this transaction ends, so
-- that a call is merged with a job that starts after it. In a queue with limits, where a claim would wait for it, only of those that
-- may be replaced, and also where they are parked. Each statement sees what was committed while the one before it waited.
-- Returns the keys as they are then, and the time.
create function {schema}.lock_keys(given text[], given_now int8)
returns table (key text, no int8, until_at int8, id text, now int8) language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $lock_keys$
#variable_conflict use_column
begin
    insert into {schema}.keys (key, no, until_at)
    select one.key, 0, 0 from (select distinct key collate "C" as key from unnest(given) as named (key)) as one
    order by one.key
    on conflict (key) do update set no = keys.no where false;

    perform from unnest(given) as named (key)
    cross join lateral (select keys.no from {schema}.keys where keys.key = named.key offset 0) as taken
    cross join lateral (select * from {schema}.jobs where jobs.no = taken.no offset 0) as job
    cross join lateral (
        select parked.no from {schema}.parked where parked.no = job.no for key share
    ) as waiting
    where job.rules::json #>> '{{0,3}}' is not null or job.rules::json #>> '{{0,4}}' = 'true';

    perform from unnest(given) as named (key)
    cross join lateral (select keys.no from {schema}.keys where keys.key = named.key offset 0) as taken
    cross join lateral (select * from {schema}.jobs where jobs.no = taken.no offset 0) as job
    cross join lateral (
        select queues.is_limited from {schema}.queues where queues.name = job.queue offset 0
    ) as its_queue
    cross join lateral (
        select ready.seq from {schema}.ready
        where ready.queue = job.queue and ready.rank = 9 - job.priority and ready.seq = job.no
            and ready.available_at = case when job.run_at is null then job.created_at + coalesce(job.delay_us, 0)
                else greatest(job.created_at, job.run_at) end
        for key share
    ) as waiting
    where job.rules::json #>> '{{0,1}}' = 'started' and (
        not its_queue.is_limited or job.rules::json #>> '{{0,3}}' is not null or job.rules::json #>> '{{0,4}}' = 'true');

    return query
    select taken.key, taken.no, taken.until_at, coalesce(job.id, taken.id), {schema}.clock(given_now)
    from unnest(given) as named (key)
    cross join lateral (select * from {schema}.keys where keys.key = named.key offset 0) as taken
    left join lateral (select jobs.id from {schema}.jobs where jobs.no = taken.no offset 0) as job on true;
end
$lock_keys$;

-- Whoever may enqueue may use rules.
alter function {schema}.use_rules() security definer set search_path = pg_catalog, pg_temp;
