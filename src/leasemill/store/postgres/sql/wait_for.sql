-- O9: this process waits for the end of these jobs; for a minute, unless it renews them.
-- Returns the numbers and ids of those that are there. Locks rows of its own alone.
with given as materialized (
    select job.no, given.id
    from unnest({ids}::text[]) as given (id)
    cross join lateral (select jobs.no from {schema}.jobs where jobs.id = given.id offset 0) as job
), waits as (
    insert into {schema}.waiters (no, channel, expires_at)
    select no, {channel}::text, statement_timestamp() + interval '1 minute' from given
    on conflict (no, channel) do update set expires_at = excluded.expires_at
)
select no, id from given
