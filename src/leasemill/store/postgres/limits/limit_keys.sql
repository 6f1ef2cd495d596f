-- The keys of a limit that are in use, in order, or the one that is given: how many places are held and by whom, how many
-- claimable jobs are under it, how far its rate is used.
with live as materialized (
    select places.key, places.no, places.fence from {schema}.places
    where places.name = {name}::text
        and exists (select from {schema}.leases where leases.no = places.no and leases.fence = places.fence offset 0)
), claimable as materialized (
    select (job.rules::json -> 1)::text as limits, count(*) as count
    from {schema}.limit_queues as limited
    cross join lateral (
        select coalesce(ready.no, ready.seq) as no from {schema}.ready where ready.queue = limited.queue offset 0
    ) as first
    cross join lateral (select rules from {schema}.jobs where jobs.no = first.no offset 0) as job
    where limited.name = {name}::text and job.rules is not null
    group by 1
    union all
    select lines.limits, standing.count
    from {schema}.lines cross join lateral (
        select count(*) from {schema}.parked where parked.queue = lines.queue and parked.line = lines.id
    ) as standing
), waiting as materialized (
    select coalesce(use ->> 1, '') as key, sum(count)::int8 as count
    from claimable cross join lateral json_array_elements(limits::json) as use
    where count > 0 and use ->> 0 = {name}::text
    group by 1
), used as (
    select key from live
    union
    select key from waiting
    union
    select key from {schema}.rates where name = {name}::text and tat > {schema}.clock({now}::int8) - 60000000
)
select used.key, (select count(*) from live where live.key = used.key) as held,
    coalesce((select waiting.count from waiting where waiting.key = used.key), 0) as waiting,
    array(
        select jobs.id from live join {schema}.jobs on jobs.no = live.no
        where live.key = used.key order by live.fence limit 10
    ) as holders,
    (select tat from {schema}.rates where rates.name = {name}::text and rates.key = used.key) as tat,
    {schema}.clock({now}::int8) as now
from used
where used.key collate "C" > {after}::text and ({key}::text is null or used.key = {key}::text) and used.key <> ''
order by used.key collate "C"
limit {limit}::int8
