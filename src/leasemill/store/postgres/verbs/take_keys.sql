-- Jobs that were just made have these keys, which the transaction has locked. Returns how many.
with taken as (
    update {schema}.unique_keys
    set no = job.no, id = case when given.keep_us > 0 then job.id end,
        until_at = case when given.keep_us > 0 then coalesce(given.kept_from, job.created_at) + given.keep_us else 0 end
    from unnest({queues}::text[], {keys}::text[], {ids}::text[], {keeps}::int8[], {kept_froms}::int8[])
        as given (queue, key, id, keep_us, kept_from)
    cross join lateral (
        select jobs.no, jobs.id, jobs.created_at from {schema}.jobs where jobs.id = given.id offset 0
    ) as job
    where unique_keys.queue = given.queue and unique_keys.key = given.key
    returning 1
)
select count(*) from taken
