-- enqueue: new jobs, durable with the transaction this runs in, which may be the caller's own.
-- E2, E4, E5: a known id is left alone; the caller compares contents.
-- Returns how many are new and, if not all are, which. Only inserts: it waits for an open insert of the same id, and for
-- nothing else.
with {_given_jobs}, inserted as (
    {_insert_jobs}
    order by turn
    on conflict on constraint job_id do nothing
    {_returning_jobs}
), {_placed}, {_notified}
select count(*) as count,
    case when count(*) < cardinality({ids}::text[]) then array_agg(id) end as ids,
    (select count from notified) as notified
from inserted
