-- ack, for members of groups without lanes or chains: it counts them too (B1), after their leases, the groups in order;
-- and fails if a sealed group has no more members unfinished than may have been added since (B2).
with {_ended}, sums as materialized (
    select group_id, count(*) as count
    from (select ({group_ids}::text[])[width_bucket(no, {nos}::int8[])] as group_id from ended) as member
    group by group_id order by group_id
), held as materialized (
    select sums.group_id, sums.count
    from sums cross join lateral (
        select groups.id from {schema}.groups where groups.id = sums.group_id for no key update
    ) as known
), summed as (
    update {schema}.groups set succeeded = groups.succeeded + held.count
    from held where groups.id = held.group_id
    returning case
        when sealed_at is null or total > succeeded + failed + dead + cancelled then 0
        else {schema}.fail('LM002', 'group ' || id || ' may be over') end as checked
)
select count(*) as count,
    (select count(pg_notify(channel, no::text)) from {schema}.waiters where no = any ({nos}::int8[])) as notified,
    (select count(checked) from summed) as members_counted,
    case when count(*) < cardinality({nos}::int8[]) then {schema}.fail('LM004', 'a lease is not held') end as failed
from ended
