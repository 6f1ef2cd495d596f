-- prune: of the jobs that succeeded, the oldest beyond a number and those from before a time are forgotten (O7).
-- The first batches of finished that hold as many as there may be, their jobs in the order of (finished_at, sequence): looked for
-- from a time, before which the caller has forgotten all, and in at most so many rows.
-- Returns how many, whether more rows were there, the time of the last row it took from, how many of its rows it took from, and how
-- many succeeded jobs there were. The caller holds the retention lock, taken by a statement before this one.
with surplus as materialized (
    select greatest(0, coalesce(sum(tallies.succeeded), 0)::int8 - {keep}::int8) as count,
        coalesce(sum(tallies.succeeded), 0)::int8 as succeeded
    from {schema}.tallies
    where exists (
        select from {schema}.queues where queues.name = tallies.queue and queues.mode <> 'acquire' offset 0
    )
), first as materialized (
    select ctid as at_ctid, at, count, nos from {schema}.finished
    where at >= {from_at}::int8 order by at fetch first ({rows}::int8) rows with ties
), opened as materialized (
    select counted.at_ctid, counted.at, counted.nos from (
        select *, sum(count) over (order by at) - sum(count) over (partition by at) as before from first
    ) as counted
    where counted.before < {limit}::int8
), listed as materialized (
    select opened.at_ctid, opened.at, job.no,
        row_number() over (order by opened.at, coalesce(mark.seq, job.no)) as number
    from opened cross join lateral unnest(opened.nos) as job (no)
    left join lateral (select marks.seq from {schema}.marks where marks.no = job.no offset 0) as mark on true
), chosen as materialized (
    select listed.no, listed.at_ctid, listed.at,
        listed.number <= {limit}::int8
            and (listed.number <= surplus.count or listed.at < {before}::int8) as is_chosen
    from listed cross join surplus
), batch as materialized (
    select at_ctid, min(at) as at, array_agg(no) filter (where not is_chosen) as nos from chosen
    group by at_ctid having bool_or(is_chosen)
), used_up as (
    delete from {schema}.finished where ctid = any (array(select at_ctid from batch where nos is null))
), cut as (
    update {schema}.finished set count = cardinality(batch.nos), nos = batch.nos
    from batch where finished.ctid = batch.at_ctid and batch.nos is not null
), gone as (
    delete from {schema}.jobs where no = any (array(select no from chosen where is_chosen order by no)) returning no, queue
), executions_gone as (
    delete from {schema}.executions where no = any (array(select no from gone))
), refusals_gone as (
    delete from {schema}.refusals where no = any (array(select no from gone))
), marks_gone as (
    delete from {schema}.marks where no = any (array(select no from gone))
), cancellations_gone as (
    delete from {schema}.cancellations where no = any (array(select no from gone))
), counted as (
    insert into {schema}.tallies (queue, succeeded) select queue, -count(*) from gone group by queue
)
select (select count(*) from gone), (select count(*) from first) >= {rows}::int8, max(at), count(*), (select succeeded from surplus)
from batch
