-- Lanes of a queue: one by its key, or those with work in the order of their heads.
select lanes.lane, lanes.head, lanes.head_seq, lanes.is_blocked, lanes.finished::text, lanes.failed::text,
    (
        select count(*) from {schema}.waiting where waiting.queue = lanes.queue and waiting.lane = lanes.lane
    ) as waiting
from {schema}.lanes
where lanes.queue = {queue}::text and ({lane}::text is null or lanes.lane = {lane}::text)
    and ({lane}::text is not null or lanes.head_seq > {after}::int8)
    and (lanes.is_blocked or not {blocked_only}::bool)
order by lanes.head_seq nulls last, lanes.lane
limit {limit}::int8
