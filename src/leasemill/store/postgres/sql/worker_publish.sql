-- A worker's heartbeat.
insert into {schema}.workers (id, record, seen_at)
values ({id}::text, {record}::bytea, {schema}.clock({now}::int8))
on conflict (id) do update set record = excluded.record, seen_at = excluded.seen_at
