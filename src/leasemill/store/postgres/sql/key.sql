-- A unique key: the job that took it last, and until when it is kept; and the time.
select keys.no, keys.until_at, coalesce(job.id, keys.id) as id, {schema}.clock({now}::int8) as now
from {schema}.keys
left join lateral (select jobs.id from {schema}.jobs where jobs.no = keys.no offset 0) as job on true
where keys.key = {key}::text and keys.no > 0
