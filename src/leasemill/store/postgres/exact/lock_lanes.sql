-- Lanes and what they remember. Locks them, in order.
select lane.queue, lane.lane, lane.head, lane.is_blocked, lane.finished::text, lane.failed::text, lane.last_finished
from (
    select given.queue, given.lane from unnest({queues}::text[], {lanes}::text[]) as given (queue, lane)
    order by given.queue, given.lane
) as given
cross join lateral (
    select lanes.* from {schema}.lanes where lanes.queue = given.queue and lanes.lane = given.lane for update
) as lane
