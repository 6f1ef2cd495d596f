-- Jobs that can be claimed (or acquired).
insert into leasemill.ready (
    queue, rank, available_at, seq, no, attempt, retries, expirations
)
select
    queue, rank, available_at, seq, nullif(no, seq), nullif(attempt, 0), nullif(retries, 0), nullif(expirations, 0)
from unnest(
    %(queue)b::text[], %(rank)b::int8[], %(available_at)b::int8[], %(seq)b::int8[], %(no)b::int8[],
    %(attempt)b::int8[], %(retries)b::int8[], %(expirations)b::int8[]
) with ordinality as given (
    queue, rank, available_at, seq, no, attempt, retries, expirations, turn_given
)
order by turn_given
