-- O5, N10: jobs that have ended are forgotten, with all that was kept of them. Returns how many.
-- The caller holds the retention lock if there are enqueued jobs among them.
with executions_gone as (
    delete from {schema}.executions where no = any ({no}::int8[]) returning no, slot, finished_at
), succeeded as materialized (
    select finished_at, array_agg(no) as nos from executions_gone where slot = 0 group by finished_at
), batch as materialized (
    select batch.at_ctid, array(select no from unnest(batch.nos) as job (no) where no <> all (succeeded.nos)) as nos
    from succeeded cross join lateral (
        select finished.ctid as at_ctid, finished.nos from {schema}.finished
        where finished.at = succeeded.finished_at and finished.nos && succeeded.nos
        offset 0
    ) as batch
), used_up as (
    delete from {schema}.finished where ctid = any (array(select at_ctid from batch where nos = '{{}}'))
), cut as (
    update {schema}.finished set count = cardinality(batch.nos), nos = batch.nos
    from batch where finished.ctid = batch.at_ctid and batch.nos <> '{{}}'
), refusals_gone as (
    delete from {schema}.refusals where no = any ({no}::int8[])
), marks_gone as (
    delete from {schema}.marks where no = any ({no}::int8[])
), cancellations_gone as (
    delete from {schema}.cancellations where no = any ({no}::int8[])
), kept_gone as (
    delete from {schema}.kept where no = any ({no}::int8[])
), gone as (
    delete from {schema}.jobs where no = any ({no}::int8[]) returning no
)
select count(*) from gone
