-- A unique key belongs to its queue: the two together are its name. The table keys is unique_keys from now on, with the queue
-- in its primary key. Rewrites that table and locks it meanwhile: stop all processes of earlier versions first. Those that run on
-- are refused when they enqueue a job with a unique key, since their table is gone, and change nothing.
alter table {schema}.keys rename to unique_keys;
delete from {schema}.unique_keys where until_at = 0 and not exists (
    select from {schema}.jobs where jobs.no = unique_keys.no);

-- Empty: the key was kept for a job that is forgotten, and which queue it was for is not on record. It is held in every queue
-- until its time is over (U3).
alter table {schema}.unique_keys add column queue text collate "C" not null default '';
update {schema}.unique_keys set queue = jobs.queue from {schema}.jobs where jobs.no = unique_keys.no;
alter table {schema}.unique_keys alter column queue drop default, drop constraint keys_pkey, add primary key (queue, key);

-- Versions that know unique keys, but not their queues, find their own migrations missing when they open the schema, and refuse.
-- Those that know no rules at all go on until rules are used.
delete from {schema}.migrations where version between 8 and 21;

drop function {schema}.lock_keys(text[], int8);

-- Makes and locks the rows of keys in their queues, in order; waits for whoever is about to take one, so that a rollback lets the next
-- one in. A key that is kept in every queue is copied into the queue it is asked for. Of jobs that hold theirs until they are started, locks the row of ready too: claims pass over it until this transaction ends, so
-- that a call is merged with a job that starts after it. In a queue with limits, where a claim would wait for it, only of those that
-- may be replaced, and also where they are parked. Each statement sees what was committed while the one before it waited.
-- Returns the keys as they are then, and the time.
create function {schema}.lock_keys(given_queues text[], given_keys text[], given_now int8)
returns table (queue text, key text, no int8, until_at int8, id text, now int8) language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $lock_keys$
#variable_conflict use_column
begin
    insert into {schema}.unique_keys (queue, key, no, until_at, id)
    select one.queue, one.key, coalesce(everywhere.no, 0), coalesce(everywhere.until_at, 0), everywhere.id
    from (
        select distinct named.queue collate "C" as queue, named.key collate "C" as key
        from unnest(given_queues, given_keys) as named (queue, key)
    ) as one
    left join lateral (
        select * from {schema}.unique_keys where unique_keys.queue = '' and unique_keys.key = one.key offset 0
    ) as everywhere on true
    order by one.queue, one.key
    on conflict (queue, key) do update set no = unique_keys.no where false;

    perform from unnest(given_queues, given_keys) as named (queue, key)
    cross join lateral (
        select unique_keys.no from {schema}.unique_keys
        where unique_keys.queue = named.queue and unique_keys.key = named.key offset 0
    ) as taken
    cross join lateral (select * from {schema}.jobs where jobs.no = taken.no offset 0) as job
    cross join lateral (
        select parked.no from {schema}.parked where parked.no = job.no for key share
    ) as waiting
    where job.rules::json #>> '{{0,3}}' is not null or job.rules::json #>> '{{0,4}}' = 'true';

    perform from unnest(given_queues, given_keys) as named (queue, key)
    cross join lateral (
        select unique_keys.no from {schema}.unique_keys
        where unique_keys.queue = named.queue and unique_keys.key = named.key offset 0
    ) as taken
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
    select taken.queue, taken.key, taken.no, taken.until_at, coalesce(job.id, taken.id), {schema}.clock(given_now)
    from unnest(given_queues, given_keys) as named (queue, key)
    cross join lateral (
        select * from {schema}.unique_keys
        where unique_keys.queue = named.queue and unique_keys.key = named.key offset 0
    ) as taken
    left join lateral (select jobs.id from {schema}.jobs where jobs.no = taken.no offset 0) as job on true;
end
$lock_keys$;

-- As the client does, for one job, with the kernel's bounds (I4). Runs with its owner's rights, so producers need none on the tables.
create or replace function {schema}.enqueue(
    queue text, kind text, payload jsonb default '{{}}', id text default null, lane text default null,
    priority int4 default 0, delay interval default null, run_at timestamptz default null,
    unique_key text default null, unique_until text default 'ended', unique_keep interval default null,
    group_id text default null, headers jsonb default null
) returns text language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $enqueue$
#variable_conflict use_column
declare
    name_form constant text := '^[A-Za-z0-9_][A-Za-z0-9_.:-]{{0,99}}$';
    latest constant int8 := 253402300799000000;
    longest constant int8 := 316224000000000;
    given_id text := enqueue.id;
    content text := enqueue.payload::text;
    -- What int8 cannot hold, as infinity, is out of bounds (-1) before it is converted.
    due_us int8 := case when enqueue.run_at not between to_timestamp(0) and to_timestamp(253402300799) then -1
        else (extract(epoch from enqueue.run_at) * 1000000)::int8 end;
    wait_us int8 := nullif(case when enqueue.delay not between interval '-100 years' and interval '100 years' then -1
        else (extract(epoch from enqueue.delay) * 1000000)::int8 end, 0);
    keep_us int8 := coalesce(case when enqueue.unique_keep not between interval '-100 years' and interval '100 years' then -1
        else (extract(epoch from enqueue.unique_keep) * 1000000)::int8 end, 0);
    created int8 := {schema}.clock(null);
    given_rules text;
    held record;
    its record;
    use text;
    job_no int8;
    due_at int8;
begin
    if enqueue.queue is null or enqueue.queue !~ name_form or enqueue.kind is null or enqueue.kind !~ name_form then
        raise exception using errcode = 'invalid_parameter_value', message = format(
            '%s %L is not a name: use 1 to 100 of A-Z a-z 0-9 _ . : - and begin with a letter, a digit or _',
            case when enqueue.queue ~ name_form then 'kind' else 'queue' end,
            case when enqueue.queue ~ name_form then enqueue.kind else enqueue.queue end);
    end if;
    if given_id is null then  -- a UUIDv7
        given_id := encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
            placing substring(int8send(created / 1000) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid::text;
    elsif length(given_id) not between 1 and 200 or not {schema}.is_printable(given_id) then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('job id %L must be 1 to 200 printable characters', left(given_id, 80));
    elsif starts_with(given_id, 'cron/') then  -- P4
        raise exception using errcode = 'invalid_parameter_value',
            message = format('job id %L begins with ''cron/'', as those of schedules'' jobs do: use another', left(given_id, 80));
    end if;
    if length(enqueue.lane) not between 1 and 200 or not {schema}.is_printable(enqueue.lane) then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('lane %L must be 1 to 200 printable characters', left(enqueue.lane, 80));
    end if;
    if jsonb_typeof(enqueue.payload) is distinct from 'object' or octet_length(content) > 1048576 then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'payload must be a JSON object with the arguments of the handler by name, of at most 1,048,576 bytes';
    end if;
    if {schema}.unreadable(enqueue.payload) is not null then
        raise exception using errcode = 'invalid_parameter_value', message = 'payload ' || {schema}.unreadable(enqueue.payload);
    end if;
    if enqueue.priority is null or enqueue.priority not between 0 and 9 then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('priority is %s; it must be a whole number from 0 to 9', enqueue.priority);
    end if;
    if wait_us is not null and enqueue.run_at is not null then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'run_at and delay exclude each other: give one of them';
    end if;
    if wait_us not between 0 and longest or due_us not between 0 and latest then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'delay must be from 0 to 3660 days, run_at from 1970 to 9999';
    end if;
    if length(enqueue.unique_key) not between 1 and 200 or not {schema}.is_printable(enqueue.unique_key) then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('unique_key %L must be 1 to 200 printable characters', left(enqueue.unique_key, 80));
    end if;
    if enqueue.unique_until is null or enqueue.unique_until not in ('ended', 'started')
            or keep_us not between 0 and longest then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'unique_until must be ''ended'' or ''started'', unique_keep from 0 to 3660 days';
    end if;
    if enqueue.unique_key is null and (enqueue.unique_until <> 'ended' or keep_us > 0) then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'unique_until and unique_keep need a unique_key';
    end if;

    if length(enqueue.group_id) not between 1 and 200 or not {schema}.is_printable(enqueue.group_id) then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('group_id %L must be 1 to 200 printable characters', left(enqueue.group_id, 80));
    end if;
    if enqueue.headers is not null and (jsonb_typeof(enqueue.headers) <> 'object'
            or jsonb_path_exists(enqueue.headers, 'strict $.* ? (@.type() != "string")')) then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'headers must be a JSON object of texts by name';
    end if;
    select count(*) as count, sum(length(one.key) + length(one.value)) as length, bool_and(one.key ~ name_form) as are_names into its
    from jsonb_each_text(coalesce(enqueue.headers, '{{}}')) as one;
    if its.count > 32 or its.length > 4096 or not its.are_names then
        raise exception using errcode = 'invalid_parameter_value', message = 'a job has at most 32 headers, of 4,096 '
            'characters together; their names are 1 to 100 of A-Z a-z 0-9 _ . : - and begin with a letter, a digit or _';
    end if;

    select queues.mode into use from {schema}.queues where queues.name = enqueue.queue;
    if use is null then
        insert into {schema}.queues (name, mode) values (enqueue.queue, 'claim')
        on conflict (name) do update set mode = coalesce(
            queues.mode, case when queues.is_limited then 'ruled' else excluded.mode end)
        returning queues.mode into use;
    end if;
    if use = 'acquire' then
        raise exception using errcode = 'object_not_in_prerequisite_state',
            message = format('queue %L is used with acquire; enqueue into another queue', enqueue.queue);
    end if;

    if enqueue.unique_key is not null or enqueue.group_id is not null then
        given_rules := json_build_array(
            case when enqueue.unique_key is not null then
                json_build_array(enqueue.unique_key, enqueue.unique_until, keep_us, null, false) end,
            '[]'::json, enqueue.group_id, '[]'::json
        )::text;
    end if;
    if given_rules is not null and use = 'claim' then  -- a version that knows no rules claims nothing from it
        update {schema}.queues set mode = 'ruled' where queues.name = enqueue.queue and queues.mode = 'claim';
    end if;
    if given_rules is not null and exists (select from {schema}.migrations where migrations.version < 8) then
        perform {schema}.use_rules();
    end if;
    if enqueue.unique_key is not null then
        if not exists (select from {schema}.jobs where jobs.id = given_id) then  -- E2, E4: ids come first
            select * into strict held from {schema}.lock_keys(array[enqueue.queue], array[enqueue.unique_key], null);
            created := held.now;
            if not exists (select from {schema}.jobs where jobs.id = given_id)
                    and {schema}.is_key_held(held.no, held.until_at, created) then
                return held.id;  -- U1: merged
            end if;
        end if;
    end if;

    if enqueue.group_id is not null and not exists (select from {schema}.jobs where jobs.id = given_id) then
        select groups.sealed_at into its from {schema}.groups where groups.id = enqueue.group_id for key share;
        if not found then
            raise exception using errcode = 'object_not_in_prerequisite_state',
                message = format('group %L is not known: create it before its members', enqueue.group_id);
        elsif its.sealed_at is not null then
            raise exception using errcode = 'object_not_in_prerequisite_state',
                message = format('group %L is sealed: only its own members may still add members', enqueue.group_id);
        end if;
    end if;

    insert into {schema}.jobs (id, queue, kind, payload, lane, priority, run_at, delay_us, created_at, rules, group_id, headers)
    values (given_id, enqueue.queue, enqueue.kind, content, enqueue.lane, enqueue.priority, due_us, wait_us, created, given_rules,
        enqueue.group_id, enqueue.headers::text)
    on conflict on constraint job_id do nothing
    returning jobs.no into job_no;
    if job_no is null then
        perform from {schema}.jobs
        where jobs.id = given_id and jobs.queue = enqueue.queue and jobs.kind = enqueue.kind
            and jobs.payload::jsonb = enqueue.payload and jobs.lane is not distinct from enqueue.lane
            and jobs.priority = enqueue.priority and jobs.run_at is not distinct from due_us
            and jobs.delay_us is not distinct from wait_us and jobs.policy is null and jobs.lane_offset is null
            and jobs.rules::jsonb is not distinct from given_rules::jsonb;
        if not found then
            raise exception using errcode = 'unique_violation', message = format(
                'job %L exists with other content; use a new id, or enqueue the same content again', given_id);
        end if;
        return given_id;
    end if;
    if enqueue.group_id is not null then  -- B1: counted with its enqueue
        insert into {schema}.group_joins (group_id, count) values (enqueue.group_id, 1);
    end if;
    if enqueue.unique_key is not null then
        update {schema}.unique_keys
        set no = job_no, until_at = case when keep_us = 0 then 0 else created + keep_us end,
            id = case when keep_us > 0 then given_id end
        where unique_keys.queue = enqueue.queue and unique_keys.key = enqueue.unique_key;
    end if;

    due_at := case when due_us is null then created + coalesce(wait_us, 0) else greatest(created, due_us) end;
    if enqueue.lane is null then
        insert into {schema}.ready (queue, rank, available_at, seq)
        values (enqueue.queue, 9 - enqueue.priority, due_at, job_no);
    else
        insert into {schema}.arrivals (no, queue, lane) values (job_no, enqueue.queue, enqueue.lane);
    end if;
    perform pg_notify('leasemill_' || (parse_ident('{schema}.jobs'))[1],
        case when due_at <= created then enqueue.queue else '' end);
    return given_id;
end
$enqueue$;
