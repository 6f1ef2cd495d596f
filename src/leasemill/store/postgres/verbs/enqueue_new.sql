-- enqueue, for ids that were drawn for this call alone: a known id fails, and all with it. The conflict clause of
-- enqueue.sql would cost a record in the database's log for each job.
with {_given_jobs}, inserted as (
    {_insert_jobs}
    order by turn
    {_returning_jobs}
), {_placed}, {_notified}
select count(*) as count,
    case when count(*) < cardinality({ids}::text[]) then array_agg(id) end as ids,
    (select count from notified) as notified
from inserted
