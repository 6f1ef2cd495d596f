-- A claim under limits: jobs that found a limit full leave ready for their lines (T5), and lines that moved have a gate to stand
-- at. JSON in: the jobs; for each of their lines the limit that was full and its first new job; the lines that moved; and the
-- gates. A line that is there already stays at the gate where it stands.
-- Locks the rows it takes; one that is not there, or that somebody is about to take, fails the whole: it is chosen again.
with given as materialized (
    select * from json_populate_recordset(null::{schema}.parked, {jobs}::json)
), found as materialized (
    select given.queue, given.line, first.*
    from given cross join lateral (
        select ready.ctid as at_ctid, ready.rank, ready.available_at, ready.seq, coalesce(ready.no, ready.seq) as no,
            ready.attempt, ready.retries, ready.expirations
        from {schema}.ready
        where ready.queue = given.queue and ready.rank = given.rank and ready.available_at = given.available_at
            and ready.seq = given.seq
        for update skip locked
    ) as first
), gone as (
    delete from {schema}.ready where ctid = any (array(select at_ctid from found))
), come as (
    insert into {schema}.parked (queue, line, rank, available_at, seq, no, attempt, retries, expirations)
    select queue, line, rank, available_at, seq, no, attempt, retries, expirations from found
), line as (
    insert into {schema}.lines as l (queue, id, limits, name, key, rank, available_at, seq)
    select queue, id, limits, name, key, rank, available_at, seq
    from json_populate_recordset(null::{schema}.lines, {lines}::json)
    on conflict (queue, id) do update set
        rank = least(l.rank, excluded.rank),
        available_at = case when (excluded.rank, excluded.available_at, excluded.seq) < (l.rank, l.available_at, l.seq)
            then excluded.available_at else l.available_at end,
        seq = case when (excluded.rank, excluded.available_at, excluded.seq) < (l.rank, l.available_at, l.seq)
            then excluded.seq else l.seq end
    returning queue, name, key, rank, available_at, seq
), gate as (
    insert into {schema}.gates as g (queue, name, key, is_open, opens_at, rank, available_at, seq)
    select first.queue, first.name, first.key, coalesce(due.is_open, false), due.opens_at, first.rank, first.available_at, first.seq
    from (
        select distinct on (queue, name, key) queue, name, key, rank, available_at, seq
        from (
            select queue, name, key, rank, available_at, seq from line
            union all
            select queue, name, key, rank, available_at, seq
            from json_populate_recordset(null::{schema}.lines, {lines_moved}::json)
        ) as come
        order by queue, name, key, rank, available_at, seq
    ) as first
    left join json_to_recordset({gates}::json) as due (name text, key text, is_open bool, opens_at int8)
        on due.name = first.name and due.key = first.key
    on conflict (name, key, queue) do update set
        is_open = g.is_open or excluded.is_open,
        opens_at = case when g.is_open or excluded.is_open then null else least(g.opens_at, excluded.opens_at) end,
        rank = least(g.rank, excluded.rank),
        available_at = case when (excluded.rank, excluded.available_at, excluded.seq) < (g.rank, g.available_at, g.seq)
            then excluded.available_at else g.available_at end,
        seq = case when (excluded.rank, excluded.available_at, excluded.seq) < (g.rank, g.available_at, g.seq)
            then excluded.seq else g.seq end
    returning 1
)
select case when (select count(*) from found) < json_array_length({jobs}::json)
    then {schema}.fail('40001', 'a job had changed before it was locked') end as failed,
    (select count(*) from gate) as gates
