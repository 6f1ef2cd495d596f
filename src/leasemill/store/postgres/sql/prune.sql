-- prune: of the jobs that succeeded, the oldest beyond a number and those from before a time are forgotten (O7).
-- Returns how many. Safe to run everywhere at once: who comes second finds them gone.
with surplus as materialized (
    select greatest(0, coalesce(sum(tallies.succeeded), 0)::int8 - %(keep)b::int8) as count
    from leasemill.tallies
    where exists (
        select from leasemill.queues where queues.name = tallies.queue and queues.mode = 'claim' offset 0
    )
), oldest as materialized (
    select first.no, first.finished_at, row_number() over (order by first.finished_at, first.seq) as number
    from (
        select executions.no, executions.finished_at, executions.seq from leasemill.executions
        where executions.slot = 0
        order by executions.finished_at, executions.seq
        limit %(limit)b::int8
    ) as first
), chosen as materialized (
    select oldest.no from oldest cross join surplus
    where oldest.number <= surplus.count or oldest.finished_at < %(before)b::int8
), gone as (
    delete from leasemill.jobs where no = any (array(select no from chosen order by no)) returning no, queue
), executions_gone as (
    delete from leasemill.executions where no = any (array(select no from gone))
), refusals_gone as (
    delete from leasemill.refusals where no = any (array(select no from gone))
), marks_gone as (
    delete from leasemill.marks where no = any (array(select no from gone))
), counted as (
    insert into leasemill.tallies (queue, succeeded) select queue, -count(*) from gone group by queue
)
select count(*) from gone
