-- FAILED, DEAD and CANCELLED jobs in the order of their sequence numbers after a position, as in candidates.sql.
select first.no, first.seq,
    (%(queue)b::text is null or job.queue = %(queue)b::text) and (%(kind)b::text is null or job.kind = %(kind)b::text)
        and (%(lane)b::text is null or job.lane = %(lane)b::text) as may_fit
from (
    select kept.no, kept.seq from leasemill.kept where kept.seq > %(after)b::int8 order by kept.seq limit %(limit)b::int8
) as first
cross join lateral (select * from leasemill.jobs where jobs.no = first.no offset 0) as job
order by first.seq
