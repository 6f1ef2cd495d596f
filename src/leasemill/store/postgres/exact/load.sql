-- The exact path, second: what a decision needs, as it is now, as one JSON document. Runs after lock.sql or expired.sql.
-- The jobs that are named, the heads of the lanes concerned, the first in line behind them (one for each job that may leave
-- its lane, and one more) and the last offset that finished: with all that belongs to them. And numbers for what a decision
-- may add; those it does not use are left out. `has_arrived`: a job that is named waits for its admission. Locks nothing.
with recursive members as materialized (
    select no, queue, lane, group_id from {schema}.jobs where id = any ({ids}::text[])
), grouped (id, parent) as (
    select one.id, one.parent
    from (
        select group_id from members where group_id is not null union select unnest({groups}::text[])
    ) as named
    cross join lateral (select * from {schema}.groups where groups.id = named.group_id offset 0) as one
    union
    select one.id, one.parent
    from grouped cross join lateral (select * from {schema}.groups where groups.id = grouped.parent offset 0) as one
), touched as materialized (
    select queue, lane, count(no) + 1 as depth
    from (
        select queue, lane, no from members where lane is not null
        union all
        select queue, lane, null from unnest({lane_queues}::text[], {lanes}::text[]) as given (queue, lane)
    ) as one
    group by queue, lane
), lane as materialized (
    select one.*, touched.depth
    from touched cross join lateral (
        select * from {schema}.lanes where lanes.queue = touched.queue and lanes.lane = touched.lane offset 0
    ) as one
), behind as materialized (
    select no from members
    where lane is not null
        and not exists (select from {schema}.leases where leases.no = members.no offset 0)
        and not exists (select from {schema}.kept where kept.no = members.no offset 0)
        and not exists (select from {schema}.executions where executions.no = members.no and slot <= 0 offset 0)
        and not exists (select from lane where head = members.no)
), line as materialized (
    select first.* from lane cross join lateral (
        select * from {schema}.waiting
        where waiting.queue = lane.queue and waiting.lane = lane.lane order by turn limit lane.depth
    ) as first
    union
    select named.* from lane cross join lateral (
        select * from {schema}.waiting
        where waiting.queue = lane.queue and waiting.lane = lane.lane and exists (select from behind)
            and waiting.no = any (array(select no from behind))
    ) as named
), found as materialized (
    select array(
        select no from members
        union select head from lane where head is not null
        union select last_finished from lane where last_finished is not null
        union select no from line
    ) as nos
), named as materialized (
    select array(
        select unnest({queues}::text[]) union select queue from touched union select queue from members
    ) as names
)
select json_build_object(
    'now', {schema}.clock({now}::int8),
    'has_arrived', exists (select from {schema}.arrivals where no = any (array(select no from members))),
    'queues', (select json_agg(one) from {schema}.queues as one where name = any ((select names from named)::text[])),
    'lanes', (select json_agg(one) from lane as one),
    'waiting', (select json_agg(one order by one.turn) from line as one),
    'groups', (
        select json_agg(one) from (
            select known.*, joins.count as joins, joins.members as joined
            from grouped cross join lateral (
                select * from {schema}.groups where groups.id = grouped.id offset 0
            ) as known
            cross join lateral (
                select count(*) as count, coalesce(sum(group_joins.count), 0)::int8 as members
                from {schema}.group_joins where group_joins.group_id = grouped.id
            ) as joins
        ) as one
    ),
    'jobs', (select json_agg(one) from {schema}.jobs as one where no = any ((select nos from found)::int8[])),
    'leases', (select json_agg(one) from {schema}.leases as one where no = any ((select nos from found)::int8[])),
    'executions', (select json_agg(one order by one.no, one.attempt) from {schema}.executions as one where no = any ((select nos from found)::int8[])),
    'parked', (select json_agg(one) from {schema}.parked as one where no = any ((select nos from found)::int8[])),
    'kept', (select json_agg(one) from {schema}.kept as one where no = any ((select nos from found)::int8[])),
    'marks', (select json_agg(one) from {schema}.marks as one where no = any ((select nos from found)::int8[])),
    'cancellations', (select json_agg(one) from {schema}.cancellations as one where no = any ((select nos from found)::int8[])),
    'refusals', (select json_agg(one order by one.number) from {schema}.refusals as one where no = any ((select nos from found)::int8[])),
    'seqs', array(select nextval('{schema}.seq') from generate_series(1, {draws}::int8)),
    'fences', array(select nextval('{schema}.fence') from generate_series(1, {draws}::int8)),
    'turns', array(select nextval('{schema}.turn') from generate_series(1, {draws}::int8))
)::text
