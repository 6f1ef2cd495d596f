-- Members that many transactions have added to a group are counted in one place; those of a group that somebody has locked
-- are left for the next time. Locks the groups, and waits for none.
with many as materialized (
    select group_id from {schema}.group_joins group by group_id having count(*) > {joins}::int8 order by group_id
), locked as materialized (
    select one.id from many cross join lateral (
        select groups.id from {schema}.groups where groups.id = many.group_id for no key update skip locked
    ) as one
), gone as (
    delete from {schema}.group_joins where group_id in (select id from locked) returning group_id, count
)
update {schema}.groups set total = total + joined.count
from (select group_id, sum(count)::int8 as count from gone group by group_id) as joined
where groups.id = joined.group_id
