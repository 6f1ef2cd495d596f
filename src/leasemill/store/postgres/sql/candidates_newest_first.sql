-- Jobs newest first, from below a position, and whether they fit, as far as that is known without reading them. A job has one
-- commit (slot 0 or below) when it has succeeded.
with moved as materialized (
    (select marks.no, marks.seq from {schema}.marks where marks.seq < {after}::int8 order by marks.seq desc limit {limit}::int8)
), unmoved as materialized (
    select jobs.no, jobs.no as seq from {schema}.jobs
    where jobs.no < {after}::int8 and not exists (select from {schema}.marks where marks.no = jobs.no offset 0)
    order by jobs.no desc limit {limit}::int8
), first as (
    select no, seq from (select no, seq from moved union all select no, seq from unmoved) as both_kinds
    order by seq desc limit {limit}::int8
)
select first.no, first.seq, {_fits}
        and ({states}::text[] is null or case
            when exists (select from {schema}.leases where leases.no = first.no offset 0) then 'leased'
            when exists (select from {schema}.executions where executions.no = first.no and executions.slot <= 0 offset 0) then 'succeeded'
            else coalesce((select kept.state from {schema}.kept where kept.no = first.no), 'ready')
        end = any ({states}::text[]))
        and ({error}::text is null or exists (
            select from {schema}.executions where executions.no = first.no and strpos(executions.error, {error}::text) > 0 offset 0
        ) or exists (select from {schema}.leases where leases.no = first.no offset 0)) as may_fit
from first cross join lateral (select * from {schema}.jobs where jobs.no = first.no offset 0) as job
order by first.seq desc
