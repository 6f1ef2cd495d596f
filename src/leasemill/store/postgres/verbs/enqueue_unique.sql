-- enqueue where jobs have unique keys (U1): the plain case, jobs whose ids are new and whose keys nobody has taken in their
-- queues. If one of the keys is there, held or not, or is kept in every queue (its queue is empty), or an id is known, all
-- are left to the kernel, so that they keep their order. The batch has each key once, and each id.
-- Returns how many were enqueued and, if not all were, which; and the numbers under which a key was taken and no job was
-- enqueued (its id came to be known meanwhile): their keys are to be deleted in the same transaction.
-- Waits for an open insert of the same key or id, keys in order.
with given as (
    select turn, id, queue, kind, payload, lane, priority, run_at, delay_us, policy::int8[] as policy, headers, rules, key,
        keep_us
    from unnest(
        {ids}::text[], {queues}::text[], {kinds}::text[], {payloads}::text[], {lanes}::text[],
        {priorities}::int8[], {run_ats}::int8[], {delays}::int8[], {policies}::text[],
        {headers}::text[], {rules}::text[], {keys}::text[], {keeps}::int8[]
    ) with ordinality as given (id, queue, kind, payload, lane, priority, run_at, delay_us, policy, headers, rules, key,
        keep_us, turn)
), gate as materialized (
    select {schema}.clock({now}::int8) as now
), fresh as materialized (
    select given.*, gate.now, nextval('{schema}.seq') as no
    from (select * from given order by turn) as given cross join gate
    where not exists (select from {schema}.jobs where jobs.id = given.id offset 0) and not exists (
        select from given as named cross join lateral (
            select from {schema}.unique_keys
            where unique_keys.queue = any (array[named.queue, '']) and unique_keys.key = named.key
            offset 0
        ) as taken
    )
), taken as (
    insert into {schema}.unique_keys (queue, key, no, until_at, id)
    select queue, key, no, case when keep_us > 0 then now + keep_us else 0 end, case when keep_us > 0 then id end
    from fresh where key is not null
    order by queue collate "C", key collate "C"
    on conflict (queue, key) do nothing
    returning no
), inserted as (
    insert into {schema}.jobs (no, id, queue, kind, payload, lane, priority, run_at, delay_us, policy, headers, rules,
        created_at)
    select no, id, queue, kind, payload, lane, priority, run_at, delay_us, policy, headers, rules, now
    from fresh
    where key is null or no in (select no from taken)
    order by turn
    on conflict on constraint job_id do nothing
    {_returning_jobs}
), {_placed}, {_notified}
select count(*) as count,
    case when count(*) < cardinality({ids}::text[]) then array_agg(id) end as ids,
    (select array_agg(no) from taken where no not in (select no from inserted)) as unused,
    (select count from notified) as notified
from inserted
