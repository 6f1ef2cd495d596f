-- A schedule as it is now. Its row is locked, or its name is (schedule_lock, and an advisory lock where it may be new).
insert into {schema}.schedules (name, revision, next_at, is_paused, record)
values ({name}::text, {revision}::int8, {next_at}::int8, {is_paused}::bool, {record}::text)
on conflict (name) do update set revision = excluded.revision, next_at = excluded.next_at,
    is_paused = excluded.is_paused, record = excluded.record
