-- enqueue of one job, as most callers do: what `enqueue_new` does, for a plain job with an id drawn for this call alone, in two
-- thirds of the time. E3: due at once, after a delay, or at a time. Returns the same columns. Only inserts: waits for nobody.
with inserted as (
    insert into {schema}.jobs (id, queue, kind, payload, priority, run_at, delay_us, headers, created_at)
    values ({id}::text, {queue}::text, {kind}::text, {payload}::text, {priority}::int8, {run_at}::int8, {delay_us}::int8,
        {headers}::text, {schema}.clock({now}::int8))
    returning no, queue, priority, created_at,
        case when run_at is null then created_at + coalesce(delay_us, 0) else greatest(created_at, run_at) end as due_at
), made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq) select queue, 9 - priority, due_at, no from inserted
)
select count(*) as count, null::text[] as ids, (
    select count(pg_notify({channel}::text, case when due_at <= created_at then queue else '' end))
    from inserted where {channel}::text is not null
) as notified
from inserted
