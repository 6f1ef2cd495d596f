-- db check --rebuild: the claimable set and the lines of lanes, made anew from jobs, leases, executions, kept and marks.
-- Locks every table it reads against writers: workers wait, and go on.
lock table leasemill.jobs, leasemill.ready, leasemill.leases, leasemill.executions, leasemill.kept, leasemill.marks,
    leasemill.arrivals, leasemill.waiting, leasemill.lanes, leasemill.requests, leasemill.finished,
    leasemill.tallies in share row exclusive mode;

create temporary table standing on commit drop as
select jobs.no, jobs.queue, jobs.lane, 9 - jobs.priority as rank, coalesce(marks.seq, jobs.no) as seq,
    coalesce(last.attempt, 0) as attempt, leases.no is not null as is_leased, coalesce(kept.blocks_lane, false) as is_blocked,
    case when marks.redriven_attempt = coalesce(last.attempt, 0) then marks.redriven_at
        when last.attempt is not null then last.available_at
        when jobs.run_at is null then jobs.created_at + coalesce(jobs.delay_us, 0)
        else greatest(jobs.created_at, jobs.run_at) end as available_at,
    case when marks.redriven_attempt = coalesce(last.attempt, 0) then 0 else coalesce(last.retries, 0) end as retries,
    case when marks.redriven_attempt = coalesce(last.attempt, 0) then 0 else coalesce(last.expirations, 0) end as expirations,
    (
        select min(waiting.turn) from leasemill.waiting where waiting.no = jobs.no
    ) as turn,
    exists (
        select from leasemill.lanes where lanes.queue = jobs.queue and lanes.lane = jobs.lane and lanes.head = jobs.no
    ) as was_head
from leasemill.jobs
left join leasemill.marks on marks.no = jobs.no
left join leasemill.leases on leases.no = jobs.no
left join leasemill.kept on kept.no = jobs.no
left join lateral (
    select executions.attempt, executions.slot, executions.available_at, executions.retries, executions.expirations
    from leasemill.executions where executions.no = jobs.no order by executions.attempt desc limit 1
) as last on true
where coalesce(last.slot, 1) > 0 and (kept.no is null or kept.blocks_lane);

delete from leasemill.ready;
delete from leasemill.waiting;
delete from leasemill.arrivals;
update leasemill.lanes set head = null, head_seq = null, is_blocked = false;

insert into leasemill.lanes (queue, lane, head, head_seq, is_blocked)
select distinct on (queue, lane) queue, lane, no, seq, is_blocked
from standing where lane is not null
order by queue, lane, is_leased desc, is_blocked desc, was_head desc, turn nulls last, seq
on conflict (queue, lane) do update
set head = excluded.head, head_seq = excluded.head_seq, is_blocked = excluded.is_blocked;

delete from leasemill.lanes where head is null and finished is null and failed is null;

insert into leasemill.waiting (queue, lane, turn, no, seq, rank, available_at, attempt, retries, expirations)
select standing.queue, standing.lane, nextval('leasemill.turn'), standing.no, standing.seq, standing.rank,
    standing.available_at, standing.attempt, standing.retries, standing.expirations
from standing join leasemill.lanes on lanes.queue = standing.queue and lanes.lane = standing.lane
where lanes.head <> standing.no
order by standing.queue, standing.lane, standing.turn nulls last, standing.seq;

insert into leasemill.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
select standing.queue, standing.rank, standing.available_at, standing.seq, nullif(standing.no, standing.seq),
    nullif(standing.attempt, 0), nullif(standing.retries, 0), nullif(standing.expirations, 0)
from standing
left join leasemill.lanes on lanes.queue = standing.queue and lanes.lane = standing.lane
where not standing.is_leased and not standing.is_blocked and (standing.lane is null or lanes.head = standing.no);

delete from leasemill.requests;
insert into leasemill.requests (id, forget_at, nos)
select request_id, leasemill.clock(null) + 60000000, array_agg(no) from leasemill.leases
where request_id is not null
group by request_id;

delete from leasemill.finished;
insert into leasemill.finished (at, count, nos)
select finished_at, count(*), array_agg(no) from leasemill.executions where slot = 0 group by finished_at;

delete from leasemill.tallies;
insert into leasemill.tallies (queue, succeeded)
select jobs.queue, count(*)
from leasemill.executions join leasemill.jobs on jobs.no = executions.no
where executions.slot <= 0
group by jobs.queue
