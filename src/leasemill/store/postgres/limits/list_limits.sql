-- Limits by name: what is on record, how many places are held and how many claimable jobs are under each, over all keys; and of
-- the jobs that name it without a key, who holds a place and how far the rate is used. A queue's own limit counts the queue's jobs.
with live as materialized (
    select places.name, places.key, places.no, places.fence from {schema}.places
    where exists (select from {schema}.leases where leases.no = places.no and leases.fence = places.fence offset 0)
), claimable as materialized (
    select (job.rules::json -> 1)::text as limits, count(*) as count
    from (
        select distinct queue from {schema}.limit_queues
        where name > {after}::text and ({name}::text is null or name = {name}::text) and name not like 'queue:%'
    ) as limited
    cross join lateral (
        select coalesce(ready.no, ready.seq) as no from {schema}.ready where ready.queue = limited.queue offset 0
    ) as first
    cross join lateral (select rules from {schema}.jobs where jobs.no = first.no offset 0) as job
    where job.rules is not null
    group by 1
    union all
    select lines.limits, standing.count
    from {schema}.lines cross join lateral (
        select count(*) from {schema}.parked where parked.queue = lines.queue and parked.line = lines.id
    ) as standing
), waiting as materialized (
    select use ->> 0 as name, coalesce(use ->> 1, '') as key, sum(count)::int8 as count
    from claimable cross join lateral json_array_elements(limits::json) as use
    where count > 0
    group by 1, 2
), used as (
    select name from {schema}.limits
    union
    select name from live
    union
    select name from waiting
    union
    select name from {schema}.rates where tat > {schema}.clock({now}::int8) - 60000000
)
select used.name, limits.declared, limits.declared_at, limits.declared_by, limits.set_terms, limits.set_at, limits.set_by,
    limits.reason,
    case when used.name like 'queue:%' then (
        select count(*) from {schema}.leases where leases.queue = substr(used.name, 7) and leases.is_limited
    ) else (select count(*) from live where live.name = used.name) end as held,
    case when used.name like 'queue:%' then (
        (select count(*) from {schema}.ready where ready.queue = substr(used.name, 7))
        + (select count(*) from {schema}.parked where parked.queue = substr(used.name, 7))
        + (select count(*) from {schema}.waiting where waiting.queue = substr(used.name, 7))
        + (select count(*) from {schema}.arrivals where arrivals.queue = substr(used.name, 7))
    ) else coalesce((select sum(waiting.count)::int8 from waiting where waiting.name = used.name), 0) end as waiting,
    case when used.name not like 'queue:%' then array(
        select jobs.id from live join {schema}.jobs on jobs.no = live.no
        where live.name = used.name and live.key = '' order by live.fence limit 10
    ) end as holders,
    (select tat from {schema}.rates where rates.name = used.name and rates.key = '') as tat,
    {schema}.clock({now}::int8) as now
from used left join {schema}.limits on limits.name = used.name
where used.name > {after}::text and ({name}::text is null or used.name = {name}::text)
order by used.name
limit {limit}::int8
