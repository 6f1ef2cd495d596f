-- The heads of `left_over` take their places in the ready table.
made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
    select queue, rank, available_at, seq, nullif(no, seq), nullif(attempt, 0), nullif(retries, 0),
        nullif(expirations, 0)
    from left_over
), lowered as materialized (
    select {schema}.lower_watermarks(array_agg(queue), array_agg(rank::int8), array_agg(available_at))
    from left_over having count(*) > 0
)
