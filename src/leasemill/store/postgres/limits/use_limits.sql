-- Queues whose jobs name these limits: from now on they are claimed under limits. Locks the queues' rows, in order.
with named as (
    insert into {schema}.limit_queues (queue, name)
    select queue, name from unnest({queues}::text[], {names}::text[]) as given (queue, name) order by queue, name
    on conflict (queue, name) do nothing
)
insert into {schema}.queues (name, is_limited)
select distinct queue, true from unnest({queues}::text[]) as given (queue) order by queue
on conflict (name) do update set is_limited = true where not queues.is_limited
