-- O12: the latest order to an instance. All orders are locked (order_lock).
insert into {schema}.worker_orders (instance, asked, at, by_whom, reason)
values ({instance}::text, {asked}::text, {at}::int8, {by}::text, {reason}::text)
on conflict (instance) do update set number = default, asked = excluded.asked, at = excluded.at,
    by_whom = excluded.by_whom, reason = excluded.reason
