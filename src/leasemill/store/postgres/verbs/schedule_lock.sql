-- One schedule, locked until the transaction ends, and the time. NULL: there is none of that name.
select {schema}.clock({now}::int8) as now,
    (select record from {schema}.schedules where name = {name}::text for update) as record
