-- What is offered to those who are not Python: enqueue by a function, and the outbox by a view. docs/guides/sql.md is the
-- contract. Creates functions and a view, and locks no table: safe while workers run.

create function {schema}.enqueue_version() returns int4 language sql immutable parallel safe
return 1;

comment on function {schema}.enqueue_version() is
    'The version of enqueue. Within one, parameters are only added, at the end and with a default.';

-- As the client's enqueue.sql does, for one job. Runs with its owner's rights, so producers need none on the tables.
create function {schema}.enqueue(
    queue text, kind text, payload jsonb default '{{}}', id text default null, lane text default null,
    priority int4 default 0, delay interval default null, run_at timestamptz default null
) returns text language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $enqueue$
#variable_conflict use_column
declare
    -- What Python does not call printable, as far as it is assigned: controls, formats, separators, private use.
    unprintable constant text := '[\u0001-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u1680\u180e\u2000-\u200f'
        || '\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\uffff]';
    name_form constant text := '^[A-Za-z0-9_][A-Za-z0-9_.:-]{{0,99}}$';
    latest constant int8 := 253402300799000000;
    longest constant int8 := 316224000000000;
    given_id text := enqueue.id;
    content text := enqueue.payload::text;
    due_us int8 := (extract(epoch from enqueue.run_at) * 1000000)::int8;
    wait_us int8 := nullif((extract(epoch from enqueue.delay) * 1000000)::int8, 0);
    created int8 := {schema}.clock(null);
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
    elsif length(given_id) not between 1 and 200 or given_id ~ unprintable then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('job id %L must be 1 to 200 printable characters', left(given_id, 80));
    end if;
    if length(enqueue.lane) not between 1 and 200 or enqueue.lane ~ unprintable then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('lane %L must be 1 to 200 printable characters', left(enqueue.lane, 80));
    end if;
    if jsonb_typeof(enqueue.payload) is distinct from 'object' or octet_length(content) > 1048576 then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'payload must be a JSON object with the arguments of the handler by name, of at most 1,048,576 bytes';
    end if;
    if enqueue.priority is null or enqueue.priority not between 0 and 9 then
        raise exception using errcode = 'invalid_parameter_value',
            message = format('priority is %s; it must be a whole number from 0 to 9', enqueue.priority);
    end if;
    if enqueue.delay is not null and enqueue.run_at is not null then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'run_at and delay exclude each other: give one of them';
    end if;
    if wait_us not between 0 and longest or due_us not between 0 and latest then
        raise exception using errcode = 'invalid_parameter_value',
            message = 'delay must be from 0 to 3660 days, run_at from 1970 to 9999';
    end if;

    select queues.mode into use from {schema}.queues where queues.name = enqueue.queue;
    if use is null then
        insert into {schema}.queues (name, mode) values (enqueue.queue, 'claim')
        on conflict (name) do update set mode = coalesce(queues.mode, excluded.mode)
        returning queues.mode into use;
    end if;
    if use = 'acquire' then
        raise exception using errcode = 'object_not_in_prerequisite_state',
            message = format('queue %L is used with acquire; enqueue into another queue', enqueue.queue);
    end if;

    insert into {schema}.jobs (id, queue, kind, payload, lane, priority, run_at, delay_us, created_at)
    values (given_id, enqueue.queue, enqueue.kind, content, enqueue.lane, enqueue.priority, due_us, wait_us, created)
    on conflict on constraint job_id do nothing
    returning jobs.no into job_no;
    if job_no is null then
        perform from {schema}.jobs
        where jobs.id = given_id and jobs.queue = enqueue.queue and jobs.kind = enqueue.kind
            and jobs.payload::jsonb = enqueue.payload and jobs.lane is not distinct from enqueue.lane
            and jobs.priority = enqueue.priority and jobs.run_at is not distinct from due_us
            and jobs.delay_us is not distinct from wait_us and jobs.policy is null and jobs.lane_offset is null;
        if not found then
            raise exception using errcode = 'unique_violation', message = format(
                'job %L exists with other content; use a new id, or enqueue the same content again', given_id);
        end if;
        return given_id;
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

comment on function {schema}.enqueue(text, text, jsonb, text, text, int4, interval, timestamptz) is
    'Enqueue a job in the transaction that calls this: committed with it, undone with it. Returns the job''s id.';

revoke all on function {schema}.enqueue(text, text, jsonb, text, text, int4, interval, timestamptz) from public;

-- Enqueued jobs by the names and statuses of an outbox. Read-only: a join cannot be written to.
create view {schema}.outbox as
select jobs.id,
    case when leases.no is not null then 'PROCESSING'
        when kept.state = 'failed' then 'FAILED'
        when kept.state = 'dead' then 'DEAD_LETTER'
        when ended.no is not null then 'COMPLETED'
        else 'PENDING' end as status,
    'epoch'::timestamptz + leases.expires_at * interval '1 microsecond' as locked_until,
    leases.token as lock_token,
    'epoch'::timestamptz + jobs.created_at * interval '1 microsecond' as created_at,
    jobs.queue, jobs.kind, jobs.lane as aggregate, jobs.payload
from {schema}.jobs
left join {schema}.leases on leases.no = jobs.no
left join {schema}.kept on kept.no = jobs.no
left join {schema}.executions as ended on ended.no = jobs.no and ended.slot = 0
where jobs.lane_offset is null;

comment on view {schema}.outbox is 'Jobs as the messages of an outbox; docs/guides/outbox.md.';
