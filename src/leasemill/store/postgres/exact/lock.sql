-- The exact path, first: locks whatever a decision may change. Lanes in order, then live leases and kept jobs, of the jobs that
-- are named and of the lanes' heads, in order of their numbers; then the groups of the jobs that are named, and the groups
-- those are in, in order of their ids; queues only where an operator changes one.
-- Lanes that are named are made first if `makes_lanes`: the conflict locks also one that this statement does not see.
-- Returns the lanes and the numbers that are locked, as JSON. What they hold is read by the next statement, load.sql: this
-- one's snapshot is older than the locks it waited for.
with recursive members as materialized (
    select no, queue, lane, group_id from {schema}.jobs where id = any ({ids}::text[])
), touched as materialized (
    select queue, lane from members where lane is not null
    union
    select queue, lane from unnest({lane_queues}::text[], {lanes}::text[]) as given (queue, lane)
    order by queue, lane
), made as (
    insert into {schema}.lanes (queue, lane)
    select queue, lane from touched where {makes_lanes}::bool
    on conflict (queue, lane) do update set is_blocked = excluded.is_blocked where false
    returning 1
), locked as materialized (
    select lane.queue, lane.lane, lane.head
    from touched cross join lateral (
        select lanes.* from {schema}.lanes
        where lanes.queue = touched.queue and lanes.lane = touched.lane and (select count(*) from made) is not null
        for update
    ) as lane
), concerned as materialized (
    select array(select no from members union select head from locked where head is not null) as nos
), leased as materialized (
    select no from {schema}.leases where no = any ((select nos from concerned)::int8[]) order by no for update
), ended as materialized (
    select no from {schema}.kept
    where no = any ((select nos from concerned)::int8[]) and (select count(*) from leased) is not null
    order by no for update
), grouped (id, parent) as (
    select one.id, one.parent
    from (select distinct group_id from members where group_id is not null) as named
    cross join lateral (select * from {schema}.groups where groups.id = named.group_id offset 0) as one
    union
    select one.id, one.parent
    from grouped cross join lateral (select * from {schema}.groups where groups.id = grouped.parent offset 0) as one
), counted as materialized (
    select one.id
    from (select id from grouped order by id) as named
    cross join lateral (
        select groups.id from {schema}.groups
        where groups.id = named.id and (select count(*) from ended) is not null
        for no key update
    ) as one
), managed as materialized (
    select name from {schema}.queues where name = any ({queues}::text[]) order by name for update
)
select json_build_object(
    'lanes', (
        select json_agg(json_build_array(queue, lane))
        from touched where {makes_lanes}::bool or (queue, lane) in (select locked.queue, locked.lane from locked)
    ),
    'nos', array(select no from leased union all select no from ended),
    'queues', (select count(*) from managed),
    'groups', array(select id from counted)
)::text
