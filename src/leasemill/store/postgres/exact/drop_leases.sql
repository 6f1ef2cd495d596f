-- The caller holds the rows' locks. Returns how many were there.
with gone as (delete from leasemill.leases where no = any (%(no)b::int8[]) returning no)
select count(*) from gone
