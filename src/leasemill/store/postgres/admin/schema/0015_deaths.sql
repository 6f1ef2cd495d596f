-- A lease may be ended because its holder is proved to have ended. The reasons for which an execution ends are the kernel's
-- to list, as the verbs are: a new one needs no migration. Drops a constraint: locks executions for a moment, safe while
-- workers run. Workers of earlier versions cannot read an execution that ended so: stop them before those of this one run.
alter table {schema}.executions drop constraint execution_reason;
