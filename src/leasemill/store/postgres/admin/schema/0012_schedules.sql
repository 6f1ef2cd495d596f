-- Schedules, one row each: what is asked of them by the server as columns, all of it as JSON in `record`. Adds a table: safe
-- while workers run; those of earlier versions know nothing of schedules and run their jobs as any other.
create table {schema}.schedules (
    name text collate "C" primary key,
    revision int8 not null,
    next_at int8 not null,
    is_paused bool not null,
    record text not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 100);

create index schedules_due on {schema}.schedules (next_at, name) where not is_paused;
