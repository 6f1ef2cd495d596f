-- Every lease of a queue with a limit of its own holds a place of it (T1), also one that was granted before there was the limit.
insert into {schema}.places (name, key, no, fence)
select 'queue:' || queue, '', no, fence from {schema}.leases where queue = {queue}::text
on conflict (name, key, no) do update set fence = excluded.fence
