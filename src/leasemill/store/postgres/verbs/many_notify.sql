-- enqueue of many, last step: the queues of jobs that are due, or '' for later ones.
select pg_notify({channel}::text, queue) from unnest({queues}::text[]) as due (queue)
