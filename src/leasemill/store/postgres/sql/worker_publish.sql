-- A worker says that it is there.
insert into {schema}.workers (id, record, seen_at)
values ({id}::text, {record}::bytea, {schema}.clock({now}::int8))
on conflict (id) do update set record = excluded.record, seen_at = excluded.seen_at
