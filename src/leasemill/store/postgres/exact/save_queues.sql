-- Queues as an operator or an acquire left them. The mode, once fixed, stays (I7).
insert into {schema}.queues (name, mode, is_paused, policy)
select name, mode, is_paused::bool, policy::int8[]
from unnest({name}::text[], {mode}::text[], {is_paused}::text[], {policy}::text[])
    as given (name, mode, is_paused, policy)
order by name
on conflict (name) do update
set mode = coalesce(queues.mode, excluded.mode), is_paused = excluded.is_paused, policy = excluded.policy
returning name, mode
