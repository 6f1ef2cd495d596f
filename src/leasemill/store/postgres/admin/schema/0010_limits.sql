-- Limits: places and rates (T1 to T15). Adds a column with a default and creates tables: locks queues for a moment, safe while
-- workers run.

-- A queue that is claimed under limits, whatever they are at the moment; it stays so.
alter table {schema}.queues add column is_limited boolean not null default false;

-- What code declared and operators set: arrays of places, rate, per_us and burst.
create table {schema}.limits (
    name text collate "C" primary key,
    declared int8[],
    declared_at int8,
    declared_by text,
    set_terms int8[],
    set_at int8,
    set_by text,
    reason text,
    constraint limit_declared check (cardinality(declared) = 4),
    constraint limit_set check (cardinality(set_terms) = 4)
);

-- Which limits the jobs of a queue have named: a claim locks them all, and no other.
create table {schema}.limit_queues (
    queue text collate "C" not null,
    name text collate "C" not null,
    primary key (queue, name)
);
create index limit_queue_name on {schema}.limit_queues (name);

-- T10: the theoretical arrival time of a limit with one key ('': none). Like the tables below, changed under the lock of the
-- limit's name alone.
create table {schema}.rates (
    tat int8 not null,
    name text collate "C" not null,
    key text collate "C" not null,
    primary key (name, key)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- T1: who holds a place. The truth are the leases: a row whose lease has gone is a place that was freed, and is deleted by the
-- next claim under that limit. Nobody else deletes one.
create table {schema}.places (
    no int8 not null,
    fence int8 not null,
    name text collate "C" not null,
    key text collate "C" not null,
    primary key (name, key, no)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- T5: claimable jobs that a claim found behind a full limit; they are not in ready. Those of one queue that name the same
-- limits stand in one line.
create table {schema}.parked (
    available_at int8 not null,
    seq int8 not null,
    no int8 not null unique,
    line uuid not null,
    rank int2 not null,
    queue text collate "C" not null,
    attempt int4,
    retries int4,
    expirations int4,
    primary key (queue, line, rank, available_at, seq)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);

-- A line stands at the gate of the limit (name, key) that kept it back. No job of it is before (rank, available_at, seq).
create table {schema}.lines (
    available_at int8 not null,
    seq int8 not null,
    id uuid not null,
    rank int2 not null,
    queue text collate "C" not null,
    name text collate "C" not null,
    key text collate "C" not null,
    limits text not null,
    primary key (queue, id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
create index line_gate on {schema}.lines (queue, name, key, rank, available_at, seq);

-- A gate is opened when a place was freed, when its rate is due (opens_at) or when its numbers changed; a claim that finds it
-- full shuts it. No job behind it is before (rank, available_at, seq).
create table {schema}.gates (
    available_at int8 not null,
    seq int8 not null,
    opens_at int8,
    rank int2 not null,
    is_open boolean not null,
    queue text collate "C" not null,
    name text collate "C" not null,
    key text collate "C" not null,
    primary key (name, key, queue)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
create index gate_open on {schema}.gates (queue, rank, available_at, seq) where is_open;
create index gate_due on {schema}.gates (queue, opens_at) where not is_open and opens_at is not null;
