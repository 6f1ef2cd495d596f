-- Jobs that ended FAILED, DEAD or CANCELLED.
insert into leasemill.kept (
    no, seq, state, available_at, updated_at, retries, expirations, blocks_lane
)
select
    no, seq, state, available_at, updated_at, retries, expirations, blocks_lane::bool
from unnest(
    %(no)b::int8[], %(seq)b::int8[], %(state)b::text[], %(available_at)b::int8[], %(updated_at)b::int8[],
    %(retries)b::int8[], %(expirations)b::int8[], %(blocks_lane)b::text[]
) with ordinality as given (
    no, seq, state, available_at, updated_at, retries, expirations, blocks_lane, turn_given
)
order by turn_given
