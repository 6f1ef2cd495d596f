-- What jobs were enqueued as, to know a duplicate from a conflict (E2, E4): rows of jobs, as JSON.
select json_agg(job)::text
from unnest({ids}::text[]) as given (id)
cross join lateral (select * from {schema}.jobs where jobs.id = given.id offset 0) as job
