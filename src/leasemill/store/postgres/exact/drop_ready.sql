-- Takes jobs out of the claimable set. Returns how many were there: fewer than asked, if a claim was faster.
with gone as (
    delete from {schema}.ready where ctid = any (array(
        select first.at_ctid
        from unnest({queue}::text[], {rank}::int8[], {available_at}::int8[], {seq}::int8[])
            as given (queue, rank, available_at, seq)
        cross join lateral (
            select ready.ctid as at_ctid from {schema}.ready
            where ready.queue = given.queue and ready.rank = given.rank
                and ready.available_at = given.available_at and ready.seq = given.seq
            for update
        ) as first
    ))
    returning no
)
select count(*) from gone
