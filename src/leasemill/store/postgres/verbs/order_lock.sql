-- O12: orders are decided one after the other. Returns the time; held until the transaction ends.
select {schema}.clock({now}::int8) from (select pg_advisory_xact_lock({key}::int8)) as locked
