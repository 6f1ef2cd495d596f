-- The next job of each lane becomes its head; a lane without one is forgotten (N4, N6).
-- Runs after a statement of the same transaction has locked the lanes, so that it sees whoever lined up before.
-- Returns the new heads and their places in the ready table.
with {_next_in_lanes}, {_heads_replaced}, left_over as (
    select * from next
), {_heads_ready}
select next.queue, next.lane, job.id, next.rank, next.available_at, next.seq
from next cross join lowered cross join lateral (select jobs.id from {schema}.jobs where jobs.no = next.no offset 0) as job
