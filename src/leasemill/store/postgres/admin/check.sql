-- db check: finds every row that does not follow from the others. Returns what is wrong, and the job it is wrong with.
with standing as materialized (
    select jobs.no, jobs.id, jobs.queue, jobs.lane, jobs.lane_offset, {schema}.rank_of(jobs.priority) as rank,
        coalesce(marks.seq, jobs.no) as seq, coalesce(last.attempt, 0) as attempt,
        coalesce(last.is_done, false) as is_done, leases.no is not null as is_leased, kept.no is not null as is_kept,
        coalesce(kept.blocks_lane, false) as blocks_lane, coalesce(last.is_final, false) as is_final,
        marks.redriven_attempt is not null and marks.redriven_attempt = coalesce(last.attempt, 0) as is_redriven,
        case when marks.redriven_attempt = coalesce(last.attempt, 0) then marks.redriven_at
            when last.attempt is not null then last.available_at
            else {schema}.due_at(jobs.created_at, jobs.run_at, jobs.delay_us) end as available_at,
        case when marks.redriven_attempt = coalesce(last.attempt, 0) then 0 else coalesce(last.retries, 0) end as retries,
        case when marks.redriven_attempt = coalesce(last.attempt, 0) then 0 else coalesce(last.expirations, 0)
            end as expirations
    from {schema}.jobs
    left join {schema}.marks on marks.no = jobs.no
    left join {schema}.leases on leases.no = jobs.no
    left join {schema}.kept on kept.no = jobs.no
    left join lateral (
        select executions.attempt, executions.slot <= 0 as is_done, executions.is_final, executions.available_at,
            executions.retries, executions.expirations
        from {schema}.executions where executions.no = jobs.no order by executions.attempt desc limit 1
    ) as last on true
), awaiting as materialized (
    select * from standing where not (is_done or is_leased or is_kept)
), claimable as materialized (
    select ready.queue, ready.rank, ready.available_at, ready.seq, coalesce(ready.no, ready.seq) as no,
        coalesce(ready.attempt, 0) as attempt, coalesce(ready.retries, 0) as retries,
        coalesce(ready.expirations, 0) as expirations
    from {schema}.ready
    union all
    select parked.queue, parked.rank, parked.available_at, parked.seq, parked.no, coalesce(parked.attempt, 0),
        coalesce(parked.retries, 0), coalesce(parked.expirations, 0)
    from {schema}.parked
), heads as materialized (
    select lanes.queue, lanes.lane, lanes.head from {schema}.lanes where lanes.head is not null
), retained as materialized (
    select finished.at, job.no from {schema}.finished cross join lateral unnest(finished.nos) as job (no)
), limited as materialized (
    select jobs.no, jobs.id, jobs.queue, use ->> 0 as name, coalesce(use ->> 1, '') as key
    from {schema}.jobs cross join lateral json_array_elements(jobs.rules::json -> 1) as use
    where jobs.rules is not null
    union all
    select leases.no, jobs.id, leases.queue, limits.name, ''
    from {schema}.leases join {schema}.limits on limits.name = 'queue:' || leases.queue
    join {schema}.jobs on jobs.no = leases.no
), numbers as materialized (
    select limits.name, coalesce(limits.set_terms[1], limits.declared[1]) as most from {schema}.limits
), wrong as (
    select 'READY, but can never be claimed' as what, awaiting.id from awaiting
    where not exists (select from {schema}.arrivals where arrivals.no = awaiting.no)
        and not exists (select from {schema}.waiting where waiting.no = awaiting.no)
        and not exists (
            select from claimable
            where claimable.queue = awaiting.queue and claimable.rank = awaiting.rank and claimable.seq = awaiting.seq
                and claimable.available_at = awaiting.available_at and claimable.no = awaiting.no
                and claimable.attempt = awaiting.attempt and claimable.retries = awaiting.retries
                and claimable.expirations = awaiting.expirations
        )
    union all
    select 'claimable, but not READY', standing.id
    from claimable left join standing on standing.no = claimable.no
    where standing.no is null or standing.is_done or standing.is_leased or standing.is_kept
    union all
    select 'claimable twice', min(standing.id)
    from claimable join standing on standing.no = claimable.no group by claimable.no having count(*) > 1
    union all
    select 'claimable, but not the head of its lane', standing.id
    from claimable join standing on standing.no = claimable.no
    where standing.lane is not null and not exists (
        select from heads where heads.queue = standing.queue and heads.lane = standing.lane and heads.head = standing.no)
    union all
    select 'in its lane''s line, but not READY', standing.id
    from {schema}.waiting left join standing on standing.no = waiting.no
    where standing.no is null or standing.is_done or standing.is_leased or standing.is_kept
    union all
    select 'in a line without a head', standing.id
    from {schema}.waiting join standing on standing.no = waiting.no
    where not exists (select from heads where heads.queue = standing.queue and heads.lane = standing.lane)
    union all
    select 'leased, but not the head of its lane', standing.id from standing
    where standing.is_leased and standing.lane is not null and not exists (
        select from heads where heads.queue = standing.queue and heads.lane = standing.lane and heads.head = standing.no)
    union all
    select 'head of its lane, but it has ended', standing.id
    from heads left join standing on standing.no = heads.head
    where standing.no is null or standing.is_done or (standing.is_kept and not standing.blocks_lane)
    union all
    select 'leased and ended', standing.id from standing where standing.is_leased and (standing.is_done or standing.is_kept)
    union all
    select 'ended twice', standing.id from standing where standing.is_done and standing.is_kept
    union all
    select 'ended for good, but not kept', standing.id from standing
    where standing.is_final and not (standing.is_kept or standing.is_leased or standing.is_redriven)
    union all
    select 'succeeded, but retention does not know when', standing.id
    from {schema}.executions join standing on standing.no = executions.no
    where executions.slot = 0 and not exists (
        select from retained where retained.no = executions.no and retained.at = executions.finished_at)
    union all
    select 'known to retention, but it has not succeeded then', standing.id
    from retained left join standing on standing.no = retained.no
    where not exists (
        select from {schema}.executions
        where executions.no = retained.no and executions.slot = 0 and executions.finished_at = retained.at)
    union all
    select 'known to retention twice', min(standing.id)
    from retained join standing on standing.no = retained.no group by retained.no having count(*) > 1
    union all
    select 'leased by a request that does not know it', jobs.id
    from {schema}.leases join {schema}.jobs on jobs.no = leases.no
    where leases.request_id is not null and not exists (
        select from {schema}.requests where requests.id = leases.request_id and leases.no = any (requests.nos))
    union all
    select 'leased under limit ' || limited.name || ', but holds no place of it', limited.id
    from {schema}.leases join limited on limited.no = leases.no
    where case when limited.name like 'queue:%' then leases.is_limited is null else not exists (
        select from {schema}.places
        where places.name = limited.name and places.key = limited.key and places.no = leases.no
            and places.fence = leases.fence) end
    union all
    select 'under limit ' || limited.name || ', in a queue that is not claimed under it', limited.id
    from limited join standing on standing.no = limited.no
    where not (standing.is_done or standing.is_kept) and not exists (
        select from {schema}.limit_queues join {schema}.queues on queues.name = limit_queues.queue and queues.is_limited
        where limit_queues.queue = limited.queue and limit_queues.name = limited.name)
    union all
    select 'parked, but no gate leads to it', standing.id
    from {schema}.parked join standing on standing.no = parked.no
    where not exists (
        select from {schema}.lines join {schema}.gates
            on gates.queue = lines.queue and gates.name = lines.name and gates.key = lines.key
        where lines.queue = parked.queue and lines.id = parked.line
            and (lines.rank, lines.available_at, lines.seq) <= (parked.rank, parked.available_at, parked.seq)
            and (gates.rank, gates.available_at, gates.seq) <= (lines.rank, lines.available_at, lines.seq))
    union all
    select 'a place of limit ' || gates.name || ' is free, but jobs of queue ' || gates.queue || ' wait for it', null
    from {schema}.gates left join numbers on numbers.name = gates.name
    where not gates.is_open and gates.opens_at is null and (numbers.most is null or (
        select count(*) from {schema}.places as held where held.name = gates.name and held.key = gates.key
    ) < numbers.most)
    union all
    select 'should hold its unique key, which another has', jobs.id
    from {schema}.jobs
    where jobs.rules is not null and jobs.rules::json #>> '{{0,4}}' = 'false' and {schema}.is_key_held(jobs.no, 0, 0)
        and not exists (
            select from {schema}.unique_keys
            where unique_keys.queue = jobs.queue and unique_keys.key = jobs.rules::json #>> '{{0,0}}'
                and unique_keys.no = jobs.no)
    union all
    select 'the tallies count ' || tallied.count || ' succeeded in queue ' || tallied.queue || ', there are ' || there.count,
        null
    from (select queue, sum(succeeded) as count from {schema}.tallies group by queue) as tallied
    left join lateral (
        select count(*) as count from standing where standing.is_done and standing.queue = tallied.queue
    ) as there on true
    where tallied.count <> there.count
    union all
    select 'group ' || counted.id || ' counts ' || counted.unfinished || ' unfinished, there are ' || coalesce(there.count, 0),
        null
    from (
        select groups.id, groups.total - groups.succeeded - groups.failed - groups.dead - groups.cancelled + coalesce(
            (select sum(group_joins.count) from {schema}.group_joins where group_joins.group_id = groups.id), 0
        ) as unfinished
        from {schema}.groups
    ) as counted
    left join (
        select id, count(*) as count
        from (
            select jobs.group_id as id from {schema}.jobs join standing on standing.no = jobs.no
            where jobs.group_id is not null and not (standing.is_done or standing.is_kept)
            union all
            select part.parent from {schema}.groups as part where part.parent is not null and not part.is_over
        ) as unfinished
        group by id
    ) as there on there.id = counted.id
    where counted.unfinished <> coalesce(there.count, 0)
    union all
    select 'group ' || groups.id || ' is over, or is not, against its counts', null
    from {schema}.groups
    where groups.is_over <> (groups.sealed_at is not null
        and groups.total = groups.succeeded + groups.failed + groups.dead + groups.cancelled
        and not exists (select from {schema}.group_joins where group_joins.group_id = groups.id))
    union all
    select 'member of group ' || jobs.group_id || ', which is not there', jobs.id
    from {schema}.jobs
    where jobs.group_id is not null and not exists (select from {schema}.groups where groups.id = jobs.group_id)
)
select what, id from wrong order by what, id limit {shown}::int8
