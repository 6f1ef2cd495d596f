-- The next job of each lane becomes its head; a lane without one is forgotten (N4, N6).
-- Runs after a statement of the same transaction has locked the lanes, so that it sees whoever lined up before.
-- Returns the new heads and their places in the ready table.
with given as materialized (
    select lane.at_ctid as lane_ctid, first.*
    from unnest({queues}::text[], {lanes}::text[]) as given (queue, lane)
    cross join lateral (
        select lanes.ctid as at_ctid from {schema}.lanes
        where lanes.queue = given.queue and lanes.lane = given.lane
        offset 0
    ) as lane
    left join lateral (
        select waiting.ctid as at_ctid, waiting.* from {schema}.waiting
        where waiting.queue = given.queue and waiting.lane = given.lane
        order by waiting.turn limit 1
    ) as first on true
), next as materialized (
    select * from given where no is not null
), gone as (
    delete from {schema}.waiting where ctid = any (array(select at_ctid from next))
), headed as (
    update {schema}.lanes set head = next.no, head_seq = next.seq, is_blocked = false
    from next where lanes.ctid = next.lane_ctid
), idle as (
    delete from {schema}.lanes where ctid = any (array(select lane_ctid from given where no is null))
), made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
    select queue, rank, available_at, seq, nullif(no, seq), nullif(attempt, 0), nullif(retries, 0), nullif(expirations, 0)
    from next
), lowered as materialized (
    select {schema}.lower_watermarks(array_agg(queue), array_agg(rank::int8), array_agg(available_at)) from next
)
select next.queue, next.lane, job.id, next.rank, next.available_at, next.seq
from next cross join lowered cross join lateral (select jobs.id from {schema}.jobs where jobs.no = next.no offset 0) as job
