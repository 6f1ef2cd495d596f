-- Headers and rules of jobs, as JSON; NULL for most. A queue whose jobs have limits, a group or a chain is of a mode of its own:
-- processes of earlier versions, which do not know them, are given none of its jobs. Adds columns without a default and replaces
-- a constraint: locks jobs and queues for a moment, safe while workers run.
alter table {schema}.jobs add column headers text, add column rules text;

alter table {schema}.queues drop constraint queue_mode;
alter table {schema}.queues add constraint queue_mode check (mode in ('claim', 'ruled', 'acquire')) not valid;

-- Called when a rule is first used. An earlier version that opens the schema from then on misses its own migrations, and
-- refuses; this and later ones look at the highest only.
create function {schema}.use_rules() returns void language sql volatile as $use_rules$
    delete from {schema}.migrations where version < 8
$use_rules$;
