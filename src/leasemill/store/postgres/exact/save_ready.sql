-- Jobs that can be claimed (or acquired), at whatever place they had.
with given as materialized (
    select * from unnest(
        {queue}::text[], {rank}::int8[], {available_at}::int8[], {seq}::int8[], {no}::int8[],
        {attempt}::int8[], {retries}::int8[], {expirations}::int8[]
    ) with ordinality as given (queue, rank, available_at, seq, no, attempt, retries, expirations, turn_given)
), made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
    select queue, rank, available_at, seq, nullif(no, seq), nullif(attempt, 0), nullif(retries, 0), nullif(expirations, 0)
    from given order by turn_given
)
select {schema}.lower_watermarks({queue}::text[], {rank}::int8[], {available_at}::int8[])
