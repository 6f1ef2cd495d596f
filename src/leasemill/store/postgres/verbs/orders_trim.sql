-- O12: the latest orders of so many instances are kept. All orders are locked (order_lock).
delete from {schema}.worker_orders where number <= (
    select number from {schema}.worker_orders order by number desc offset {most}::int8 limit 1
)
