-- T13: of jobs that were released and the limits that they hold up: the key, the numbers and how far the rate is used.
-- Runs under the locks of the limits.
select given.name, coalesce((
    select use ->> 1 from json_array_elements(job.rules::json -> 1) as use where use ->> 0 = given.name
), '') as key, given.hold_us, known.declared, known.set_terms, coalesce(rate.tat, 0) as tat, {schema}.clock({now}::int8) as now
from unnest({ids}::text[], {names}::text[], {holds}::int8[]) as given (id, name, hold_us)
cross join lateral (select rules from {schema}.jobs where jobs.id = given.id offset 0) as job
left join lateral (
    select declared, set_terms from {schema}.limits where limits.name = given.name offset 0
) as known on true
left join lateral (
    select tat from {schema}.rates
    where rates.name = given.name and rates.key = coalesce((
        select use ->> 1 from json_array_elements(job.rules::json -> 1) as use where use ->> 0 = given.name
    ), '')
    offset 0
) as rate on true
