-- Schedules with a tick at or before this time, the longest due first.
select record from {schema}.schedules
where not is_paused and next_at <= {wall}::int8
order by next_at, name limit {limit}::int8
