-- The settings that decide whether a crash, or a failover, may lose what was accepted. A role that is no member of pg_monitor
-- sees the standbys, but not their state.
select current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names'), (
        select count(*) from pg_stat_replication as one
        where coalesce(one.state, 'streaming') = 'streaming' and not exists (
            select from pg_replication_slots as slot where slot.active_pid = one.pid and slot.slot_type = 'logical'))
