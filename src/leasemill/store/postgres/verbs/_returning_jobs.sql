-- E3: a new job is due at once, after a delay, or at a time.
returning no, id, queue, lane, priority, created_at, group_id,
        case when run_at is null then created_at + coalesce(delay_us, 0) else greatest(created_at, run_at) end as due_at
