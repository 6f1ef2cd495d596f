-- Members that were added to these groups are counted in one place. The caller holds the groups' rows.
with gone as (
    delete from {schema}.group_joins where group_id = any ({groups}::text[]) returning group_id, count
)
update {schema}.groups set total = total + joined.count
from (select group_id, sum(count)::int8 as count from gone group by group_id) as joined
where groups.id = joined.group_id
