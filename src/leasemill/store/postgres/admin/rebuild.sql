-- db check --rebuild: the claimable set, the lines of lanes and the places held, rebuilt from jobs, leases, executions, kept,
-- marks and limits. Jobs that waited for a limit are claimable: the next claims look at them again.
-- Locks every table it reads against writers: workers wait, and go on.
lock table {schema}.jobs, {schema}.ready, {schema}.leases, {schema}.executions, {schema}.kept, {schema}.marks,
    {schema}.arrivals, {schema}.waiting, {schema}.lanes, {schema}.requests, {schema}.finished,
    {schema}.tallies, {schema}.parked, {schema}.lines, {schema}.gates, {schema}.places, {schema}.limit_queues,
    {schema}.limits, {schema}.queues, {schema}.unique_keys in share row exclusive mode;

create temporary table standing on commit drop as
select jobs.no, jobs.queue, jobs.lane, {schema}.rank_of(jobs.priority) as rank, coalesce(marks.seq, jobs.no) as seq,
    coalesce(last.attempt, 0) as attempt, leases.no is not null as is_leased, coalesce(kept.blocks_lane, false) as is_blocked,
    case when marks.redriven_attempt = coalesce(last.attempt, 0) then marks.redriven_at
        when last.attempt is not null then last.available_at
        else {schema}.due_at(jobs.created_at, jobs.run_at, jobs.delay_us) end as available_at,
    case when marks.redriven_attempt = coalesce(last.attempt, 0) then 0 else coalesce(last.retries, 0) end as retries,
    case when marks.redriven_attempt = coalesce(last.attempt, 0) then 0 else coalesce(last.expirations, 0) end as expirations,
    (
        select min(waiting.turn) from {schema}.waiting where waiting.no = jobs.no
    ) as turn,
    exists (
        select from {schema}.lanes where lanes.queue = jobs.queue and lanes.lane = jobs.lane and lanes.head = jobs.no
    ) as was_head
from {schema}.jobs
left join {schema}.marks on marks.no = jobs.no
left join {schema}.leases on leases.no = jobs.no
left join {schema}.kept on kept.no = jobs.no
left join lateral (
    select executions.attempt, executions.slot, executions.available_at, executions.retries, executions.expirations
    from {schema}.executions where executions.no = jobs.no order by executions.attempt desc limit 1
) as last on true
where coalesce(last.slot, 1) > 0 and (kept.no is null or kept.blocks_lane);

delete from {schema}.ready;
delete from {schema}.watermarks;
delete from {schema}.waiting;
delete from {schema}.arrivals;
delete from {schema}.parked;
delete from {schema}.lines;
delete from {schema}.gates;
update {schema}.lanes set head = null, head_seq = null, is_blocked = false;

insert into {schema}.lanes (queue, lane, head, head_seq, is_blocked)
select distinct on (queue, lane) queue, lane, no, seq, is_blocked
from standing where lane is not null
order by queue, lane, is_leased desc, is_blocked desc, was_head desc, turn nulls last, seq
on conflict (queue, lane) do update
set head = excluded.head, head_seq = excluded.head_seq, is_blocked = excluded.is_blocked;

delete from {schema}.lanes where head is null and finished is null and failed is null;

insert into {schema}.waiting (queue, lane, turn, no, seq, rank, available_at, attempt, retries, expirations)
select standing.queue, standing.lane, nextval('{schema}.turn'), standing.no, standing.seq, standing.rank,
    standing.available_at, standing.attempt, standing.retries, standing.expirations
from standing join {schema}.lanes on lanes.queue = standing.queue and lanes.lane = standing.lane
where lanes.head <> standing.no
order by standing.queue, standing.lane, standing.turn nulls last, standing.seq;

insert into {schema}.ready (queue, rank, available_at, seq, no, attempt, retries, expirations)
select standing.queue, standing.rank, standing.available_at, standing.seq, nullif(standing.no, standing.seq),
    nullif(standing.attempt, 0), nullif(standing.retries, 0), nullif(standing.expirations, 0)
from standing
left join {schema}.lanes on lanes.queue = standing.queue and lanes.lane = standing.lane
where not standing.is_leased and not standing.is_blocked and (standing.lane is null or lanes.head = standing.no);

delete from {schema}.requests;
insert into {schema}.requests (id, forget_at, nos)
select request_id, {schema}.clock(null) + 60000000, array_agg(no) from {schema}.leases
where request_id is not null
group by request_id;

delete from {schema}.finished;
insert into {schema}.finished (at, count, nos)
select finished_at, count(*), array_agg(no) from {schema}.executions where slot = 0 group by finished_at;

insert into {schema}.unique_keys (queue, key, no, until_at, id)
select held.queue, held.key, held.no, case when held.keep_us > 0 then held.created_at + held.keep_us else 0 end,
    case when held.keep_us > 0 then held.id end
from (
    select jobs.rules::json #>> '{{0,0}}' as key, (jobs.rules::json #>> '{{0,2}}')::int8 as keep_us, jobs.no, jobs.id,
        jobs.queue, jobs.created_at
    from {schema}.jobs
    where jobs.rules is not null and jobs.rules::json #>> '{{0,4}}' = 'false' and {schema}.is_key_held(jobs.no, 0, 0)
) as held
order by held.queue, held.key
on conflict (queue, key) do update set no = excluded.no, until_at = excluded.until_at, id = excluded.id
where unique_keys.no <> excluded.no;

delete from {schema}.tallies;
insert into {schema}.tallies (queue, succeeded)
select jobs.queue, count(*)
from {schema}.executions join {schema}.jobs on jobs.no = executions.no
where executions.slot <= 0
group by jobs.queue;

create temporary table limited on commit drop as
select jobs.no, jobs.queue, use ->> 0 as name, coalesce(use ->> 1, '') as key
from standing join {schema}.jobs on jobs.no = standing.no
cross join lateral json_array_elements(jobs.rules::json -> 1) as use
where jobs.rules is not null;

insert into {schema}.limit_queues (queue, name)
select distinct queue, name from limited
on conflict (queue, name) do nothing;

update {schema}.queues set is_limited = true
where not is_limited and name in (select queue from {schema}.limit_queues);

delete from {schema}.places;
insert into {schema}.places (name, key, no, fence)
select limited.name, limited.key, leases.no, leases.fence
from limited join {schema}.leases on leases.no = limited.no;

update {schema}.leases set is_limited = true
where is_limited is null and exists (select from {schema}.limits where limits.name = 'queue:' || leases.queue)
