-- Jobs newest first, from below a position, and whether they fit as far as jobs alone can tell.
with moved as materialized (
    (select marks.no, marks.seq from leasemill.marks where marks.seq < %(after)b::int8 order by marks.seq desc limit %(limit)b::int8)
), unmoved as materialized (
    select jobs.no, jobs.no as seq from leasemill.jobs
    where jobs.no < %(after)b::int8 and not exists (select from leasemill.marks where marks.no = jobs.no offset 0)
    order by jobs.no desc limit %(limit)b::int8
), first as (
    select no, seq from (select no, seq from moved union all select no, seq from unmoved) as both_kinds
    order by seq desc limit %(limit)b::int8
)
select first.no, first.seq,
    (%(queue)b::text is null or job.queue = %(queue)b::text) and (%(kind)b::text is null or job.kind = %(kind)b::text)
        and (%(lane)b::text is null or job.lane = %(lane)b::text) as may_fit
from first cross join lateral (select * from leasemill.jobs where jobs.no = first.no offset 0) as job
order by first.seq desc
