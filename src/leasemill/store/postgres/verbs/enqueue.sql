-- enqueue: new jobs, durable with the transaction this runs in, which may be the caller's own.
-- E2, E4, E5: a known id is left alone; the caller compares contents. E3: due at once, after a delay, or at a time.
-- Without a conflict clause (`enqueue_new`) it is for ids drawn for this call alone: the clause costs a record in the
-- log for each job. Returns how many are new and, if not all are, which. Only inserts: waits for nobody but an open insert of the same id.
-- `enqueue_members` is for jobs of groups (B1): nothing is inserted if one of them is new and its group is unknown or sealed, and
-- not that of the job that adds it (B5); then the groups are returned. It shares a lock on the groups' keys, in order:
-- waits for who seals one of them. `enqueue_caused` is for members that the kernel has counted.
with given as (
    select turn, id, queue, kind, payload, lane, priority, run_at, delay_us, policy::int8[] as policy, headers, rules{group_id}
    from unnest(
        {ids}::text[], {queues}::text[], {kinds}::text[], {payloads}::text[], {lanes}::text[],
        {priorities}::int8[], {run_ats}::int8[], {delays}::int8[], {policies}::text[],
        {headers}::text[], {rules}::text[]{group_ids}
    ) with ordinality as given (id, queue, kind, payload, lane, priority, run_at, delay_us, policy, headers, rules{group_id}, turn)
){refused}, inserted as (
    insert into {schema}.jobs (id, queue, kind, payload, lane, priority, run_at, delay_us, policy, headers, rules,
        created_at{group_id})
    select id, queue, kind, payload, lane, priority, run_at, delay_us, policy, headers, rules, (select {schema}.clock({now}::int8)){group_id}
    from given
    {if_not_refused}
    order by turn
    {if_known}
    returning no, id, queue, lane, priority, created_at{group_id},
        case when run_at is null then created_at + coalesce(delay_us, 0) else greatest(created_at, run_at) end as due_at
), {placed}{joined}, {notified}
select count(*) as count,
    case when count(*) < cardinality({ids}::text[]) then array_agg(id) end as ids,
    (select count from notified) as notified{refused_groups}
from inserted
