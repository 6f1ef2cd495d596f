-- The earliest next tick. NULL: no schedule has one.
select min(next_at) from {schema}.schedules where not is_paused
