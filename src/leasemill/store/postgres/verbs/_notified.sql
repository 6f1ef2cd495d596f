-- Who waits for one of the queues of the new jobs is notified: by name if a job is due, else by the empty name. The server
-- sends equal notifications of a transaction once; a DISTINCT here would cost a small enqueue a tenth of its time.
notified as (
    select count(pg_notify({channel}::text, case when due_at <= created_at then queue else '' end)) as count
    from inserted where {channel}::text is not null
)
