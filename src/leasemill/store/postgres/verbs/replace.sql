-- U8 to U10: jobs that were never claimed have another payload, and may be due later. The transaction has locked their keys and their
-- rows of ready or parked; one that is due later is in ready again. A row of ready is never updated: a claim that has seen it as it
-- was would take it, and could not delete it as it is. Returns how many were found there.
with given as materialized (
    select given.id, given.payload, given.headers, given.due_at, given.count, given.at, job.no, job.queue,
        {schema}.rank_of(job.priority) as rank, {schema}.due_at(job.created_at, job.run_at, job.delay_us) as was_due_at
    from unnest({ids}::text[], {payloads}::text[], {headers}::text[], {due_ats}::int8[], {counts}::int8[], {ats}::int8[])
        as given (id, payload, headers, due_at, count, at)
    cross join lateral (select * from {schema}.jobs where jobs.id = given.id offset 0) as job
), standing as materialized (
    select given.no from given cross join lateral (
        select from {schema}.ready
        where ready.queue = given.queue and ready.rank = given.rank and ready.available_at = given.was_due_at
            and ready.seq = given.no
        offset 0
    ) as one
    union all
    select given.no from given cross join lateral (
        select from {schema}.parked where parked.no = given.no offset 0
    ) as one
), changed as (
    update {schema}.jobs
    set payload = given.payload, headers = given.headers, run_at = given.due_at,
        replaced = coalesce(jobs.replaced, 0) + given.count, replaced_at = given.at
    from given join standing on standing.no = given.no
    where jobs.no = given.no
    returning 1
), left_ready as (
    delete from {schema}.ready using given
    where given.due_at <> given.was_due_at and ready.queue = given.queue and ready.rank = given.rank
        and ready.available_at = given.was_due_at and ready.seq = given.no
    returning given.no
), unparked as (
    delete from {schema}.parked using given
    where given.due_at <> given.was_due_at and parked.no = given.no
    returning parked.no
), come as (
    insert into {schema}.ready (queue, rank, available_at, seq)
    select given.queue, given.rank, given.due_at, given.no from given
    where given.no in (select no from left_ready union all select no from unparked)
    returning queue, rank, available_at
), lowered as materialized (
    select {schema}.lower_watermarks(array_agg(queue), array_agg(rank::int8), array_agg(available_at)) from come
)
select (select count(*) from changed) as count from lowered
