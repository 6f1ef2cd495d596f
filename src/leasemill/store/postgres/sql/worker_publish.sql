-- A worker says that it is there.
insert into leasemill.workers (id, record, seen_at)
values (%(id)b::text, %(record)b::bytea, leasemill.clock(%(now)b::int8))
on conflict (id) do update set record = excluded.record, seen_at = excluded.seen_at
