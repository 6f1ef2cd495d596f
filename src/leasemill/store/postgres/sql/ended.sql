-- Which of these jobs have ended, or are not there (any more). Returns their ids; locks nothing.
select given.id
from unnest({ids}::text[]) as given (id)
left join lateral (select jobs.no from {schema}.jobs where jobs.id = given.id offset 0) as job on true
where job.no is null
    or exists (select from {schema}.kept where kept.no = job.no offset 0)
    or exists (select from {schema}.executions where executions.no = job.no and executions.slot in (0, -1) offset 0)
