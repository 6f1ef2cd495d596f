-- This process does not wait for these jobs any more. Returns how many rows went.
with gone as (
    delete from {schema}.waiters where no = any ({nos}::int8[]) and channel = {channel}::text returning no
)
select count(*) from gone
