-- What time it is.
select leasemill.clock(%(now)b::int8)
