-- enqueue and commit refuse what the kernel refuses (I4), and no more: characters that are not printable in every plane, JSON that is nested
-- too deep or has a number that no client can read, headers that are not texts. Replaces functions, with their grants: locks no table, safe
-- while jobs are enqueued.

-- What the kernel's UNPRINTABLE refuses: controls, formats, separators, surrogates, private use and what is no character.
create or replace function {schema}.is_printable(given text) returns bool language sql immutable parallel safe
return given !~ ('[\u0001-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u1680\u180e\u2000-\u200f\u2028-\u202f'
    || '\u205f-\u206f\u3000\ud800-\uf8ff\ufdd0-\ufdef\ufeff\ufff0-\ufffb\ufffe\uffff\U000110bd\U000110cd\U00013430-\U0001343f'
    || '\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U0001fffe\U0001ffff\U0002fffe\U0002ffff\U0003fffe-\U000e00ff\U000e01f0-\U0010ffff]');

-- Why no client can read this JSON, or null. Only a text with as many brackets, or digits in a row, is looked into.
create or replace function {schema}.unreadable(given jsonb) returns text language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp as $unreadable$
declare
    content constant text := given::text;
begin
    if length(content) - length(translate(content, '[{{', '')) > 500
            and jsonb_path_exists(given, 'strict $.**{{500}} ? (@.type() == "object" || @.type() == "array")') then
        return 'is nested more than 500 levels deep: make it flatter';
    end if;
    if content ~ '[0-9]{{255}}[0-9]{{54}}' and exists (
        select from jsonb_path_query(given, 'strict $.** ? (@.type() == "number")') as one (value)
        where case when position('.' in one.value::text) > 0 then abs(one.value::numeric) >= 1.7976931348623158e308
            else length(abs(one.value::numeric)::text) > 4300 end
    ) then
        return 'has a number that is out of range: use a text';
    end if;
    return null;
end
$unreadable$;

-- As the client does, for one job. Runs with its owner's rights, so producers need none on the tables.
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
    due_us int8 := (extract(epoch from enqueue.run_at) * 1000000)::int8;
    wait_us int8 := nullif((extract(epoch from enqueue.delay) * 1000000)::int8, 0);
    keep_us int8 := coalesce((extract(epoch from enqueue.unique_keep) * 1000000)::int8, 0);
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
            select * into strict held from {schema}.lock_keys(array[enqueue.unique_key], null);
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
        update {schema}.keys
        set no = job_no, until_at = case when keep_us = 0 then 0 else created + keep_us end,
            id = case when keep_us > 0 then given_id end
        where keys.key = enqueue.unique_key;
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

-- For clients that are not Python: the guard, with follow-up jobs. Returns their ids, or those of the jobs that hold their unique keys.
create or replace function {schema}.commit(job_id text, token text, result jsonb default null, followups jsonb default '[]')
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
    if {schema}.unreadable(result) is not null then
        raise exception using errcode = 'invalid_parameter_value', message = 'result ' || {schema}.unreadable(result);
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
            (one ->> 'unique_keep')::interval, one ->> 'group_id', one -> 'headers');
    end loop;
    return ids;
end
$commit$;
