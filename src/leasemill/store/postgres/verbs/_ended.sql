-- Held leases end DONE; an earlier commit stands, whatever the time (L6, X7). Those of heads of lanes end only if their lanes
-- are given: then `advance` follows in the same transaction. Offsets are left to the exact path.
-- Locks the lanes, in order, then the leases' rows, in order: an enqueue into a lane and `advance` take them in the same order.
locked as materialized (
    select lane.queue, lane.lane
    from (
        select queue, lane from unnest({lane_queues}::text[], {lanes}::text[]) as given (queue, lane) order by queue, lane
    ) as given
    cross join lateral (
        select lanes.queue, lanes.lane from {schema}.lanes
        where lanes.queue = given.queue and lanes.lane = given.lane for update
    ) as lane
), ended as (
    delete from {schema}.leases
    where no = any ({nos}::int8[])
        and ((no, token) in (select * from unnest({nos}::int8[], {tokens}::text[]))) is true
        and (lane is null or (queue, lane) in (select locked.queue, locked.lane from locked)) and lane_offset is null
        and (committed_at is not null or expires_at > {schema}.clock({now}::int8))
    returning leases.*, (select {schema}.clock({now}::int8)) as now,
        ({results}::text[])[width_bucket(no, {nos}::int8[])] as given_result
), saved as (  -- slot 0: the execution that has ended the job
    insert into {schema}.executions (no, slot, attempt, available_at, retries, expirations, fence, token, worker,
        request_id, leased_at, expires_at, terms, started_at, committed_at, finished_at, ended_by, committed_by, result,
        kept_report_id, kept_retries)
    select no, 0, attempt, available_at, retries, expirations, fence, token, worker, request_id, leased_at, expires_at,
        terms, coalesce(started_at, now), coalesce(committed_at, now), now, 'ack',
        case when committed_at is null then 'ack' else 'commit' end,
        case when committed_at is null then given_result else result end, kept_report_id, kept_retries
    from ended
), finished as (
    insert into {schema}.finished (at, count, nos) select now, count(*), array_agg(no) from ended group by now
), counted as (
    insert into {schema}.tallies (queue, succeeded) select queue, count(*) from ended group by queue
)
