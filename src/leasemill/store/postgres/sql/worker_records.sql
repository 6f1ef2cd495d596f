-- Every worker's record, and its age in microseconds, by this server's clock (L8); a clock set back makes it 0.
select id, record, greatest(0, leasemill.clock(%(now)b::int8) - seen_at) from leasemill.workers order by id
