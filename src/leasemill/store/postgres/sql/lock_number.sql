-- Waits for an advisory lock, and has it until the transaction ends.
select pg_advisory_xact_lock({key}::int8)
