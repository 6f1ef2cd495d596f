-- Where jobs belong: their numbers and lanes; whether they wait for admission.
select job.no, job.id, job.queue, job.lane,
    exists (select from {schema}.arrivals where arrivals.no = job.no offset 0) as has_arrived
from unnest({ids}::text[]) as given (id)
cross join lateral (
    select jobs.no, jobs.id, jobs.queue, jobs.lane from {schema}.jobs where jobs.id = given.id offset 0
) as job
