-- ack of an offset: its held lease ends DONE, as in ack.sql; N10: the offset goes into the lane's ranges, and of the
-- lane's jobs that succeeded only this one is kept; N4: the first in line is the lane's head.
-- Returns one row, with the new head's id and offset if there is one; or nothing: then `decided.py` decides.
-- Runs after a statement of the same transaction has locked the lane, so that it sees whoever lined up before.
with ended as (
    delete from {schema}.leases
    where no = {no}::int8 and token = {token}::text and queue = {queue}::text and lane = {lane}::text
        and lane_offset is not null
        and (committed_at is not null or expires_at > {schema}.clock({now}::int8))
    returning leases.*, (select {schema}.clock({now}::int8)) as now
), kept as (
    insert into {schema}.executions (no, slot, attempt, available_at, retries, expirations, fence, token, worker,
        request_id, leased_at, expires_at, terms, started_at, committed_at, finished_at, ended_by, committed_by, result,
        kept_report_id, kept_retries)
    select no, -1, attempt, available_at, retries, expirations, fence, token, worker, request_id, leased_at, expires_at,
        terms, coalesce(started_at, now), coalesce(committed_at, now), now, 'ack',
        case when committed_at is null then 'ack' else 'commit' end,
        case when committed_at is null then {result}::text else result end, kept_report_id, kept_retries
    from ended
), earlier as materialized (
    select array(
        select last_finished from {schema}.lanes
        where queue = {queue}::text and lane = {lane}::text and last_finished is not null and exists (select from ended)
    ) as nos
), next as (
    delete from {schema}.waiting
    where queue = {queue}::text and lane = {lane}::text and exists (select from ended) and turn = (
        select min(turn) from {schema}.waiting where queue = {queue}::text and lane = {lane}::text
    )
    returning waiting.*
), made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
    select queue, rank, available_at, seq, nullif(no, seq), nullif(attempt, 0), nullif(retries, 0), nullif(expirations, 0)
    from next
), headed as (
    update {schema}.lanes set head = (select no from next), head_seq = (select seq from next),
        last_finished = (select no from ended),
        finished = coalesce(finished, '{{}}')
            + (select int8multirange(int8range(lane_offset, lane_offset + 1)) from ended)
    where queue = {queue}::text and lane = {lane}::text and exists (select from ended)
), executions_gone as (
    delete from {schema}.executions where no = any ((select nos from earlier)::int8[])
), refusals_gone as (
    delete from {schema}.refusals where no = any ((select nos from earlier)::int8[])
), marks_gone as (
    delete from {schema}.marks where no = any ((select nos from earlier)::int8[])
), cancellations_gone as (
    delete from {schema}.cancellations where no = any ((select nos from earlier)::int8[])
), gone as (
    delete from {schema}.jobs where no = any ((select nos from earlier)::int8[]) returning no
), counted as (
    insert into {schema}.tallies (queue, succeeded) select queue, 1 from ended where not exists (select from gone)
)
select head.id, head.lane_offset,
    (select count(pg_notify(channel, no::text)) from {schema}.waiters where no = {no}::int8) as notified
from ended left join lateral (
    select id, lane_offset from {schema}.jobs where no = (select no from next) offset 0
) as head on true
