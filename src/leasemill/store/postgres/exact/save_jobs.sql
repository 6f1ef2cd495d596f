-- Jobs that came by acquire.
insert into leasemill.jobs (
    no, id, queue, kind, payload, lane, priority, run_at, delay_us, policy, lane_offset, created_at
)
select
    no, id, queue, kind, payload, lane, priority, run_at, delay_us, policy::int8[], lane_offset, created_at
from unnest(
    %(no)b::int8[], %(id)b::text[], %(queue)b::text[], %(kind)b::text[], %(payload)b::text[], %(lane)b::text[],
    %(priority)b::int8[], %(run_at)b::int8[], %(delay_us)b::int8[], %(policy)b::text[], %(lane_offset)b::int8[],
    %(created_at)b::int8[]
) with ordinality as given (
    no, id, queue, kind, payload, lane, priority, run_at, delay_us, policy, lane_offset, created_at, turn_given
)
order by turn_given
