-- A unique key of a queue, or one that is kept in every queue: the job that took it last, and until when it is kept; and the time.
select unique_keys.no, unique_keys.until_at, coalesce(job.id, unique_keys.id) as id, {schema}.clock({now}::int8) as now
from {schema}.unique_keys
left join lateral (select jobs.id from {schema}.jobs where jobs.no = unique_keys.no offset 0) as job on true
where unique_keys.queue = any (array[{queue}::text, '']) and unique_keys.key = {key}::text and unique_keys.no > 0
order by unique_keys.queue desc limit 1
