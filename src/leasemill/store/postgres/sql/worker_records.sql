-- Every worker's record, and its age in microseconds, by this server's clock (L8); a clock set back makes it 0.
select id, record, greatest(0, {schema}.clock({now}::int8) - seen_at) from {schema}.workers order by id
