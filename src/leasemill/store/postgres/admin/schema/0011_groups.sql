-- Groups of jobs, and which job is a member of which. Adds a column without a default, and an index of no rows, for which jobs is
-- read once: who enqueues waits for it.
alter table {schema}.jobs add column group_id text collate "C";
create index job_group on {schema}.jobs (group_id, no) where group_id is not null;

-- A group, its counts of members that have ended, and its callbacks as JSON. Members count in `total` once their rows of
-- group_joins are folded into it. Its row is locked in three ways: `for key share` by who adds members, which keeps nobody
-- waiting but who seals it; `for no key update` by who ends or redrives some; `for update` by who seals or forgets it.
-- Always after lanes, leases and kept jobs, and several in the order of their ids.
create table {schema}.groups (
    id text collate "C" primary key,
    created_at int8 not null,
    sealed_at int8,
    ended_at int8,
    succeeded_at int8,
    total int8 not null default 0,
    succeeded int8 not null default 0,
    failed int8 not null default 0,
    dead int8 not null default 0,
    cancelled int8 not null default 0,
    is_over boolean not null default false,
    parent text collate "C",
    then_job text,
    end_job text,
    number int8 not null default nextval('{schema}.seq'),
    constraint group_counts check (succeeded >= 0 and failed >= 0 and dead >= 0 and cancelled >= 0),
    constraint group_over check (not is_over or (sealed_at is not null and ended_at is not null))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
create index group_parent on {schema}.groups (parent) where parent is not null;
create index group_ended on {schema}.groups (ended_at) where is_over;

-- How many members a transaction added to a group: a row for each, so that nobody waits for another's.
create table {schema}.group_joins (
    group_id text collate "C" not null,
    count int8 not null
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
create index group_join on {schema}.group_joins (group_id);
