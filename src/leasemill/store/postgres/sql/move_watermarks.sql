-- Watermarks move forward. One whose next_at is the proven one moves there, or to the first job before it; one that is worn
-- gets a next_at where it has none: the first job, or two seconds ago. Those that somebody is lowering are left alone.
-- Returns the next_at of all that have one, to be proven. Locks the watermarks, and waits for nobody.
with gate as materialized (
    select {schema}.clock({now}::int8) as now
), given as materialized (
    select * from unnest({queues}::text[], {ranks}::int8[], {proven_ats}::int8[], {worn}::int8[])
        as given (queue, rank, proven_at, is_worn)
), held as materialized (
    select queue, rank, low_at, next_at from {schema}.watermarks
    where (queue, rank) in (select queue, rank from given)
    for update skip locked
), seen as materialized (
    select given.*, coalesce(low_at, 0) as low_at, next_at, coalesce(next_at = proven_at, false) as is_proven, first_at, now
    from gate cross join given
    left join held on held.queue = given.queue and held.rank = given.rank
    left join lateral (
        select ready.available_at as first_at from {schema}.ready
        where ready.queue = given.queue and ready.rank = given.rank and ready.available_at >= coalesce(low_at, 0)
        order by ready.available_at limit 1
    ) as first on true
), moving as materialized (
    select queue, rank, low_at as was_low_at, next_at as was_next_at,
        case when is_proven then least(next_at, first_at) else low_at end as low_at,
        case when is_proven or next_at is null then
            case when is_worn > 0 then least(first_at, now - 2000000) end else next_at end as next_at
    from seen
), moved as materialized (
    select queue, rank, was_low_at, was_next_at, low_at, case when next_at > low_at then next_at end as next_at from moving
), made as (
    insert into {schema}.watermarks (queue, rank, low_at, next_at)
    select queue, rank, 0, next_at from moved
    where next_at is not null and (queue, rank) not in (select queue, rank from {schema}.watermarks)  -- also of one that is locked
    on conflict (queue, rank) do nothing
    returning queue, rank, next_at
), changed as (
    update {schema}.watermarks as w set low_at = moved.low_at, next_at = moved.next_at
    from moved join held using (queue, rank)
    where w.queue = moved.queue and w.rank = moved.rank
        and (moved.low_at <> was_low_at or moved.next_at is distinct from was_next_at)
)
select moved.queue, moved.rank, moved.next_at from moved join held using (queue, rank)
union all
select queue, rank, next_at from made
union all
select queue, rank, next_at from {schema}.watermarks
where next_at is not null and (queue, rank) not in (select queue, rank from given)
