-- Who waits for one of the queues of the new jobs is notified: by name if a job is due, else by the empty name.
notified as (
    select count(pg_notify({channel}::text, due_queue)) as count
    from (
        select distinct case when due_at <= created_at then queue else '' end as due_queue
        from inserted where {channel}::text is not null
    ) as changed
)
