-- A statement whose guard did not hold fails by this, so that what is sent together with it, COMMIT above all, is not
-- carried out. The verbs that end an execution are the kernel's to list: a new one needs no migration.
-- Creates a function and drops a constraint of executions: locks that table for a moment, safe while workers run.
create function {schema}.fail(code text, reason text) returns int4 language plpgsql volatile as $fail$
begin
    raise exception using errcode = code, message = reason;
end
$fail$;

alter table {schema}.executions drop constraint execution_ended_by;
