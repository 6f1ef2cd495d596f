-- Takes jobs out of their lane's line; the caller holds the lane's lock. Returns how many.
with gone as (
    delete from {schema}.waiting where ctid = any (array(
        select first.at_ctid
        from unnest({queue}::text[], {lane}::text[], {turn}::int8[]) as given (queue, lane, turn)
        cross join lateral (
            select waiting.ctid as at_ctid from {schema}.waiting
            where waiting.queue = given.queue and waiting.lane = given.lane and waiting.turn = given.turn
            offset 0
        ) as first
    ))
    returning no
)
select count(*) from gone
