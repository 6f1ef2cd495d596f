-- This process does not wait for these jobs any more. Returns how many rows went.
with gone as (
    delete from leasemill.waiters where no = any (%(nos)b::int8[]) and channel = %(channel)b::text returning no
)
select count(*) from gone
