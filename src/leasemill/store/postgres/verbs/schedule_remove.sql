-- A schedule goes; its row is locked.
delete from {schema}.schedules where name = {name}::text
