-- Jobs behind their lane's head; the caller holds the lane's lock.
insert into leasemill.waiting (
    queue, lane, turn, no, seq, rank, available_at, attempt, retries, expirations
)
select
    queue, lane, turn, no, seq, rank, available_at, attempt, retries, expirations
from unnest(
    %(queue)b::text[], %(lane)b::text[], %(turn)b::int8[], %(no)b::int8[], %(seq)b::int8[], %(rank)b::int8[],
    %(available_at)b::int8[], %(attempt)b::int8[], %(retries)b::int8[], %(expirations)b::int8[]
) with ordinality as given (
    queue, lane, turn, no, seq, rank, available_at, attempt, retries, expirations, turn_given
)
order by turn_given
