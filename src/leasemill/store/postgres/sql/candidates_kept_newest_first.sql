-- FAILED and DEAD jobs newest first, from below a position, as in candidates_newest_first.sql.
select first.no, first.seq, {_fits}
        and ({states}::text[] is null or first.state = any ({states}::text[]))
        and ({error}::text is null or exists (
            select from {schema}.executions where executions.no = first.no and strpos(executions.error, {error}::text) > 0 offset 0
        )) as may_fit
from (
    select kept.no, kept.seq, kept.state from {schema}.kept where kept.seq < {after}::int8 order by kept.seq desc limit {limit}::int8
) as first
cross join lateral (select * from {schema}.jobs where jobs.no = first.no offset 0) as job
order by first.seq desc
