-- Which processes wait for the end of which jobs, and the channel each of them listens to: whoever ends a job notifies
-- them, and nobody if there is no row. Soft state, safe to lose. Creates a table, and locks none: safe while workers run.
create unlogged table {schema}.waiters (
    no int8 not null,
    channel text collate "C" not null,
    expires_at timestamptz not null,
    primary key (no, channel)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
