-- The tables of one Leasemill store. `{{schema}}` stands for the name of its schema.
-- Instants are microseconds since the Unix epoch, durations microseconds. docs/postgres.md explains each table.
-- For the log's sake, in jobs, ready, leases and executions: columns of a fixed width come first, so that nothing is padded,
-- and what is nearly always so is NULL: counts that are 0, and what a comment says.

create sequence {schema}.seq;
create sequence {schema}.fence;
create sequence {schema}.turn;

-- What the store's time is: a test's, or the database's clock, read at each call.
create function {schema}.clock(given int8) returns int8 language sql volatile
return coalesce(given, (extract(epoch from clock_timestamp()) * 1000000)::int8);

create table {schema}.queues (
    name text collate "C" primary key,
    mode text,
    is_paused boolean not null default false,
    policy int8[],
    constraint queue_mode check (mode in ('claim', 'acquire')),
    constraint queue_policy check (cardinality(policy) = 7)
);

-- Written once, never updated.
create table {schema}.jobs (
    no int8 primary key default nextval('{schema}.seq'),
    created_at int8 not null,
    priority int2 not null,
    id text collate "C" not null,
    queue text collate "C" not null,
    kind text collate "C" not null,
    payload text not null,
    lane text collate "C",
    lane_offset int8,
    run_at int8,
    delay_us int8,
    policy int8[],
    constraint job_id unique (id),
    constraint job_priority check (priority between 0 and 9),
    constraint job_policy check (cardinality(policy) = 7),
    constraint job_offset check (lane_offset is null or lane is not null)
);

-- The claimable set: derived, rebuilt by `leasemill db check --rebuild`.
create table {schema}.ready (
    available_at int8 not null,
    seq int8 not null,
    rank int2 not null,
    queue text collate "C" not null,
    no int8,  -- NULL: seq
    attempt int4,
    retries int4,
    expirations int4,
    primary key (queue, rank, available_at, seq)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);

-- One live execution for each leased job (the primary key) and each lane (lease_lane): COMMITTED if committed_at is there,
-- else STARTED if started_at is, else LEASED.
create table {schema}.leases (
    no int8 primary key,
    available_at int8 not null,
    fence int8 not null,
    leased_at int8 not null,
    expires_at int8 not null,
    attempt int4 not null,
    rank int2 not null,
    queue text collate "C" not null,
    token text collate "C" not null,
    worker text not null,
    request_id text collate "C",
    lane text collate "C",
    lane_offset int8,
    seq int8,  -- NULL: no
    retries int4,
    expirations int4,
    updated_at int8,  -- NULL: leased_at
    terms int8[],
    started_at int8,
    committed_at int8,
    result text,
    error text,
    kept_report_id text,
    kept_retries int4,
    constraint lease_committed check (committed_at is null or started_at is not null),
    constraint lease_terms check (cardinality(terms) = 7),
    constraint lease_kept check ((kept_report_id is null) = (kept_retries is null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
create unique index lease_lane on {schema}.leases (queue, lane) where lane is not null;
create index lease_expiry on {schema}.leases (expires_at) where expires_at < 9223372036854775807;

-- Which jobs a claim gave, for a repeated claim: those of them that are leased under this request are the answer.
-- Derived from leases; forgotten when none of them is, looked at from forget_at on.
create table {schema}.requests (
    id text collate "C" primary key,
    forget_at int8 not null,
    nos int8[] not null
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
create index request_forget on {schema}.requests (forget_at);

-- Executions that have ended: written once. slot is the attempt, but 0 (jobs that were claimed) or -1 (acquired) for the
-- one that committed, so that the primary key says: one commit per job. retries, expirations and available_at are the
-- job's as this execution left them.
create table {schema}.executions (
    no int8 not null,
    available_at int8 not null,
    fence int8 not null,
    leased_at int8 not null,
    expires_at int8 not null,
    finished_at int8 not null,
    started_at int8,
    committed_at int8,
    slot int4 not null,
    attempt int4 not null,
    token text collate "C" not null,
    worker text not null,
    request_id text collate "C",
    ended_by text not null,
    committed_by text,
    is_final boolean not null default false,
    retries int4,
    expirations int4,
    retry_at int8,
    reason text,
    terms int8[],
    result text,
    error text,
    kept_report_id text,
    kept_retries int4,
    primary key (no, slot),
    constraint execution_slot check (slot = attempt or slot in (0, -1)),
    constraint execution_end check (
        (slot <= 0 and committed_at is not null and committed_by is not null and started_at is not null
            and reason is null and not is_final and retry_at is null)
        or (slot > 0 and committed_at is null and committed_by is null and reason is not null and result is null)
    ),
    constraint execution_reason check (reason in ('expired', 'failed', 'released', 'cancelled')),
    constraint execution_ended_by check (ended_by in ('ack', 'nack', 'release', 'expire', 'cancel'))
);

-- Which enqueued jobs succeeded when, a row for each batch: the order in which retention forgets them. Derived from
-- executions (slot 0); changed and deleted under the retention lock alone.
create table {schema}.finished (
    at int8 not null,
    count int4 not null,
    nos int8[] not null,
    constraint finished_count check (count > 0 and count = cardinality(nos))
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
create index finished_at on {schema}.finished (at);

-- FAILED and DEAD jobs.
create table {schema}.kept (
    no int8 primary key,
    seq int8 not null unique,
    state text not null,
    available_at int8 not null,
    updated_at int8 not null,
    retries int4 not null,
    expirations int4 not null,
    is_cancelled boolean not null,
    blocks_lane boolean not null,
    constraint kept_state check (
        (state = 'failed' and not is_cancelled) or (state = 'dead' and not (is_cancelled and blocks_lane))
    )
);

-- Jobs an operator redrove: their place in the order, and since when their retries are counted.
create table {schema}.marks (
    no int8 primary key,
    seq int8 not null unique,
    redriven_attempt int4 not null,
    redriven_at int8 not null
);

-- Lane jobs that were enqueued and not admitted yet; no row outlives the next admission that sees it.
create table {schema}.arrivals (
    no int8 primary key,
    queue text collate "C" not null,
    lane text collate "C" not null
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);

-- Admitted jobs behind their lane's head, in turn. Changed under the lock of the lane's row alone.
create table {schema}.waiting (
    queue text collate "C" not null,
    lane text collate "C" not null,
    turn int8 not null,
    no int8 not null,
    seq int8 not null,
    rank int2 not null,
    available_at int8 not null,
    attempt int4 not null,
    retries int4 not null,
    expirations int4 not null,
    primary key (queue, lane, turn)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);

-- Lanes that have a head, or offsets to remember.
create table {schema}.lanes (
    queue text collate "C" not null,
    lane text collate "C" not null,
    head int8,
    head_seq int8,
    is_blocked boolean not null default false,
    finished int8multirange,
    failed int8multirange,
    last_finished int8,
    primary key (queue, lane),
    constraint lane_head check ((head is null) = (head_seq is null) and (head is not null or not is_blocked))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);

-- Reports that came too late.
create table {schema}.refusals (
    no int8 not null,
    token text collate "C" not null,
    verb text not null,
    number int8 generated always as identity,
    worker text,
    attempt int4,
    current_attempt int4 not null,
    reason text not null,
    at int8 not null,
    primary key (no, token, verb)
);

-- What operators did.
create table {schema}.actions (
    number int8 generated always as identity primary key,
    at int8 not null,
    verb text not null,
    by_whom text not null,
    target text not null,
    reason text not null
);

-- How many jobs succeeded, per queue, as changes to be summed: nobody waits for anybody to count.
create table {schema}.tallies (
    queue text collate "C" not null,
    succeeded int8 not null
);

-- Who works here: soft state, safe to lose.
create unlogged table {schema}.workers (
    id text collate "C" primary key,
    record bytea not null,
    seen_at int8 not null
);
