-- What the kernel refuses (I4), as functions: characters that are not printable in every plane, JSON that is nested too deep or has a number
-- that no client can read. commit refuses it from here on, enqueue from the next version on, which replaces it anyway. Replaces functions,
-- with their grants: locks no table, safe while jobs are enqueued.

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
