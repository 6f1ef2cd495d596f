-- The latest order to one process of a worker.
select worker_orders.instance, worker_orders.asked, worker_orders.at, worker_orders.by_whom, worker_orders.reason
from {schema}.worker_orders where worker_orders.instance = {instance}::text
