-- A claim under limits, first: locks the limits that jobs of these queues name, in one order for all. From here on nobody
-- else takes a place of them, or changes what waits for one. Whoever ends a lease is not kept waiting.
-- `waits`: the same request may still be at work elsewhere; waits for its end.
-- Returns the names. What stands behind the locks is read by the statements that follow, whose snapshots are newer.
with gate as materialized (
    select case when {waits}::bool then pg_advisory_xact_lock({request_key}::int8)::text
        else pg_try_advisory_xact_lock_shared({request_key}::int8)::text end as request
), named as materialized (
    select name, key from (
        select distinct name, hashtextextended('{schema}.limits ' || name, 0) as key
        from gate cross join {schema}.limit_queues
        where queue = any ({queues}::text[])
    ) as one
    order by key
)
select array_agg(name) as names, count(pg_advisory_xact_lock(key)) as count from named
