-- Jobs that came by acquire.
insert into {schema}.jobs (
    no, id, queue, kind, payload, lane, priority, run_at, delay_us, policy, lane_offset, created_at
)
select
    no, id, queue, kind, payload, lane, priority, run_at, delay_us, policy::int8[], lane_offset, created_at
from unnest(
    {no}::int8[], {id}::text[], {queue}::text[], {kind}::text[], {payload}::text[], {lane}::text[],
    {priority}::int8[], {run_at}::int8[], {delay_us}::int8[], {policy}::text[], {lane_offset}::int8[],
    {created_at}::int8[]
) with ordinality as given (
    no, id, queue, kind, payload, lane, priority, run_at, delay_us, policy, lane_offset, created_at, turn_given
)
order by turn_given
