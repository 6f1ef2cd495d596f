-- What jobs were enqueued as, to tell a duplicate from a conflict (E2, E4).
select jobs.id, jobs.queue, jobs.kind, jobs.payload, jobs.lane, jobs.priority, jobs.run_at, jobs.delay_us, jobs.policy,
    jobs.lane_offset
from unnest({ids}::text[]) as given (id)
cross join lateral (select * from {schema}.jobs where jobs.id = given.id offset 0) as jobs
