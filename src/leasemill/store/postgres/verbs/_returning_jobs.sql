-- E3: a new job is due at once, after a delay, or at a time.
returning no, id, queue, lane, priority, created_at, group_id,
        {schema}.due_at(created_at, run_at, delay_us) as due_at
