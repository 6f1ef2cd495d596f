-- The first of each lane's line, and those of the line that are asked for; the caller holds the lanes' locks.
select distinct lane.queue, lane.lane, lane.turn, lane.no
from unnest({queues}::text[], {lanes}::text[], {depths}::int8[]) as given (queue, lane, depth)
cross join lateral (
    (
        select waiting.queue, waiting.lane, waiting.turn, waiting.no from {schema}.waiting
        where waiting.queue = given.queue and waiting.lane = given.lane
        order by waiting.turn limit given.depth
    )
    union all
    select waiting.queue, waiting.lane, waiting.turn, waiting.no from {schema}.waiting
    where waiting.queue = given.queue and waiting.lane = given.lane and waiting.no = any ({nos}::int8[])
) as lane
order by lane.queue, lane.lane, lane.turn
