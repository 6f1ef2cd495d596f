-- Jobs in the order of their sequence numbers after a position, and whether they fit as far as the jobs table shows.
with moved as materialized (
    (select marks.no, marks.seq from {schema}.marks where marks.seq > {after}::int8 order by marks.seq limit {limit}::int8)
), unmoved as materialized (
    select jobs.no, jobs.no as seq from {schema}.jobs
    where jobs.no > {after}::int8 and not exists (select from {schema}.marks where marks.no = jobs.no offset 0)
    order by jobs.no limit {limit}::int8
), first as (
    select no, seq from (select no, seq from moved union all select no, seq from unmoved) as both_kinds
    order by seq limit {limit}::int8
)
select first.no, first.seq, {_fits} as may_fit
from first cross join lateral (select * from {schema}.jobs where jobs.no = first.no offset 0) as job
order by first.seq
