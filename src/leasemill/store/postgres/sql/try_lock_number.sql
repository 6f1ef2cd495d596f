-- An advisory lock until the transaction ends, if nobody else has it. Returns whether it is ours.
select pg_try_advisory_xact_lock({key}::int8)
