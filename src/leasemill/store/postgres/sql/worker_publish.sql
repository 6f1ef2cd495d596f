-- A worker's heartbeat. Returns the latest order to it, if there is one (O13).
with published as (
    insert into {schema}.workers (id, record, seen_at)
    values ({id}::text, {record}::bytea, {schema}.clock({now}::int8))
    on conflict (id) do update set record = excluded.record, seen_at = excluded.seen_at
)
select worker_orders.instance, worker_orders.asked, worker_orders.at, worker_orders.by_whom, worker_orders.reason
from {schema}.worker_orders where worker_orders.instance = {instance}::text
