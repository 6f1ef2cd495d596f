-- Rows that nobody has renewed, of processes that died, are forgotten. Returns how many.
with gone as (
    delete from {schema}.waiters where expires_at < statement_timestamp() returning no
)
select count(*) from gone
