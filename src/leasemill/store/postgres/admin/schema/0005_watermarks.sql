-- Before low_at there is no row of ready for this queue and rank, committed or not: claims, counts and readings begin there.
-- next_at is where it moves when all who were writing as it was published have ended. Rank -1 is the watermark of leases: none
-- expires before it. A row that is missing means 0: safe to lose.
-- Creates a table, a function and an index of the few leases that never expire: workers wait for it, and go on.
create table {schema}.watermarks (
    queue text collate "C" not null,
    rank int2 not null,
    low_at int8 not null,
    next_at int8,
    primary key (queue, rank),
    constraint watermark_next check (next_at > low_at)
) with (fillfactor = 20);

create index lease_endless on {schema}.leases (no) where expires_at = 9223372036854775807;

-- Whoever puts a job into ready with a time that the clock did not give just now calls this in the same transaction.
-- Locks the watermarks it lowers, in order. With its owner's rights: those who may enqueue may do this and no more.
create function {schema}.lower_watermarks(queues text[], ranks int8[], ats int8[]) returns void language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $lower$
begin
    with put as (
        select given.queue, given.rank, min(given.at) as at from unnest(queues, ranks, ats) as given (queue, rank, at)
        group by given.queue, given.rank
    ), passed as (
        select watermarks.queue, watermarks.rank, put.at
        from put join {schema}.watermarks on watermarks.queue = put.queue and watermarks.rank = put.rank
        where put.at < greatest(watermarks.low_at, watermarks.next_at)
        order by watermarks.queue, watermarks.rank
        for update of watermarks
    )
    update {schema}.watermarks set low_at = least(watermarks.low_at, passed.at), next_at = null
    from passed where watermarks.queue = passed.queue and watermarks.rank = passed.rank;
end
$lower$;
