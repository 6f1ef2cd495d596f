-- admission, second step, in the same transaction: arrived jobs become heads of idle lanes or line up (N2, N3). Does nothing
-- where the first step found another admission under way.
-- Sees what became visible before it began, in the order of numbers. Returns the new heads' places in the ready table.
-- Locks lanes, in order. One that somebody has locked, or that vanished since the first step, is left to the next admission.
with come as materialized (
    select first.no, first.queue, first.lane, {schema}.rank_of(jobs.priority) as rank, jobs.created_at,
        {schema}.due_at(jobs.created_at, jobs.run_at, jobs.delay_us) as available_at,
        row_number() over (partition by first.queue, first.lane order by first.no) as place
    from (
        select no, queue, lane from {schema}.arrivals
        where current_setting('leasemill.admits', true) = 'yes' order by no limit {limit}::int8
    ) as first
    cross join lateral (select * from {schema}.jobs where jobs.no = first.no offset 0) as jobs
), touched as materialized (
    select distinct queue, lane from come order by queue, lane
), locked as materialized (
    select lane.queue, lane.lane, lane.head
    from touched cross join lateral (
        select lanes.* from {schema}.lanes
        where lanes.queue = touched.queue and lanes.lane = touched.lane
        for update skip locked
    ) as lane
), placed as materialized (
    select come.*, locked.head is null and come.place = 1 as is_head
    from come join locked on locked.queue = come.queue and locked.lane = come.lane
), gone as (
    delete from {schema}.arrivals where no = any (array(select no from placed))
), headed as (
    insert into {schema}.lanes (queue, lane, head, head_seq)
    select queue, lane, no, no from placed where is_head order by queue, lane
    on conflict (queue, lane) do update set head = excluded.head, head_seq = excluded.head_seq
), lined_up as (
    insert into {schema}.waiting (queue, lane, turn, no, seq, rank, available_at, attempt, retries, expirations)
    select queue, lane, nextval('{schema}.turn'), no, no, rank, available_at, 0, 0, 0
    from placed where not is_head order by no
), made_ready as (
    insert into {schema}.ready (queue, rank, available_at, seq)
    select queue, rank, available_at, no from placed where is_head
    returning queue, rank, available_at, seq
), lowered as materialized (
    select {schema}.lower_watermarks(array_agg(queue), array_agg(rank::int8), array_agg(available_at)) from made_ready
)
select queue, rank, available_at, seq from made_ready cross join lowered
