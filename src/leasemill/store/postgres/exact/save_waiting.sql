-- Jobs behind their lane's head; the caller holds the lane's lock.
insert into {schema}.waiting (
    queue, lane, turn, no, seq, rank, available_at, attempt, retries, expirations
)
select
    queue, lane, turn, no, seq, rank, available_at, attempt, retries, expirations
from unnest(
    {queue}::text[], {lane}::text[], {turn}::int8[], {no}::int8[], {seq}::int8[], {rank}::int8[],
    {available_at}::int8[], {attempt}::int8[], {retries}::int8[], {expirations}::int8[]
) with ordinality as given (
    queue, lane, turn, no, seq, rank, available_at, attempt, retries, expirations, turn_given
)
order by turn_given
