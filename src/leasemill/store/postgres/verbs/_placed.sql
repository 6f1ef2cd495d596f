-- New jobs without a lane take their places in the ready table; the others arrive at their lanes.
made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq)
    select queue, {schema}.rank_of(priority), due_at, no from inserted where lane is null
), arrived as (
    insert into {schema}.arrivals (no, queue, lane)
    select no, queue, lane from inserted where lane is not null
)
