-- FAILED and DEAD jobs newest first, from below a position, as in candidates_newest_first.sql.
select first.no, first.seq,
    (%(queue)b::text is null or job.queue = %(queue)b::text) and (%(kind)b::text is null or job.kind = %(kind)b::text)
        and (%(lane)b::text is null or job.lane = %(lane)b::text) as may_fit
from (
    select kept.no, kept.seq from leasemill.kept where kept.seq < %(after)b::int8 order by kept.seq desc limit %(limit)b::int8
) as first
cross join lateral (select * from leasemill.jobs where jobs.no = first.no offset 0) as job
order by first.seq desc
