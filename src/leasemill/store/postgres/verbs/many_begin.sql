-- enqueue of many, first step: the time, and a number for each job, ascending. Inserts nothing: it is there for the lock that an
-- insert takes, so that the time is read by a transaction that writes to ready, as the watermark of claims asks.
with locked as (
    insert into {schema}.ready (queue, rank, available_at, seq) select '', 0, 0, 0 where false
)
select {schema}.clock({now}::int8) as now, array(select nextval('{schema}.seq') from generate_series(1, {count}::int8)) as nos
