-- FAILED, DEAD and CANCELLED jobs in the order of their sequence numbers after a position, as in candidates.sql.
select first.no, first.seq, {_fits} as may_fit
from (
    select kept.no, kept.seq from {schema}.kept where kept.seq > {after}::int8 order by kept.seq limit {limit}::int8
) as first
cross join lateral (select * from {schema}.jobs where jobs.no = first.no offset 0) as job
order by first.seq
