-- The exact path, first: locks whatever a decision may change. Lanes in order, then live leases and kept jobs, of the jobs that
-- are named and of the lanes' heads, in order of their numbers; queues only where an operator changes one.
-- Lanes that are named are made first if `makes_lanes`: the conflict locks also one that this statement does not see.
-- Returns the lanes and the numbers that are locked, as JSON. What they hold is read by the next statement, load.sql: this
-- one's snapshot is older than the locks it waited for.
with members as materialized (
    select job.no, job.queue, job.lane
    from unnest({ids}::text[]) as given (id)
    cross join lateral (select no, queue, lane from {schema}.jobs where jobs.id = given.id offset 0) as job
), touched as materialized (
    select queue, lane from members where lane is not null
    union
    select queue, lane from unnest({lane_queues}::text[], {lanes}::text[]) as given (queue, lane)
    order by queue, lane
), made as (
    insert into {schema}.lanes (queue, lane)
    select queue, lane from touched where {makes_lanes}::bool order by queue, lane
    on conflict (queue, lane) do update set is_blocked = excluded.is_blocked where false
    returning queue
), locked as materialized (
    select lane.queue, lane.lane, lane.head
    from touched cross join lateral (
        select lanes.* from {schema}.lanes
        where lanes.queue = touched.queue and lanes.lane = touched.lane and (select count(*) from made) is not null
        for update
    ) as lane
), concerned as materialized (
    select no from members union select head from locked where head is not null order by no
), leased as materialized (
    select lease.no
    from concerned cross join lateral (
        select leases.no from {schema}.leases where leases.no = concerned.no for update
    ) as lease
), ended as materialized (
    select kept.no
    from concerned cross join lateral (
        select kept.no from {schema}.kept
        where kept.no = concerned.no and (select count(*) from leased) is not null
        for update
    ) as kept
), managed as materialized (
    select name from {schema}.queues where name = any ({queues}::text[]) order by name for update
)
select json_build_object(
    'lanes', (
        select json_agg(json_build_array(queue, lane)) from (
            select queue, lane from locked union select queue, lane from touched where {makes_lanes}::bool
        ) as lane
    ),
    'nos', (select json_agg(no) from (select no from leased union select no from ended) as job),
    'queues', (select json_agg(name) from managed)
)::text
