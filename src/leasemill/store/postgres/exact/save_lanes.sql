-- Lanes as they stand; the caller holds their locks.
insert into {schema}.lanes (
    queue, lane, head, head_seq, is_blocked, finished, failed, last_finished
)
select
    queue, lane, head, head_seq, is_blocked::bool, finished::int8multirange, failed::int8multirange, last_finished
from unnest(
    {queue}::text[], {lane}::text[], {head}::int8[], {head_seq}::int8[], {is_blocked}::text[],
    {finished}::text[], {failed}::text[], {last_finished}::int8[]
) with ordinality as given (
    queue, lane, head, head_seq, is_blocked, finished, failed, last_finished, turn_given
)
order by turn_given
on conflict (queue, lane) do update set head = excluded.head, head_seq = excluded.head_seq,
    is_blocked = excluded.is_blocked, finished = excluded.finished, failed = excluded.failed,
    last_finished = excluded.last_finished
