-- Jobs that ended FAILED, DEAD or CANCELLED.
insert into {schema}.kept (
    no, seq, state, available_at, updated_at, retries, expirations, blocks_lane
)
select
    no, seq, state, available_at, updated_at, retries, expirations, blocks_lane::bool
from unnest(
    {no}::int8[], {seq}::int8[], {state}::text[], {available_at}::int8[], {updated_at}::int8[],
    {retries}::int8[], {expirations}::int8[], {blocks_lane}::text[]
) with ordinality as given (
    no, seq, state, available_at, updated_at, retries, expirations, blocks_lane, turn_given
)
order by turn_given
