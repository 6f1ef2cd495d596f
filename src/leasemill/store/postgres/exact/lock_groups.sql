-- The groups that are named, and the groups those are in: locks them in the order of their ids, for counts to change.
-- Returns their ids.
with recursive grouped (id, parent) as (
    select groups.id, groups.parent from {schema}.groups where groups.id = any ({groups}::text[])
    union
    select one.id, one.parent
    from grouped cross join lateral (select * from {schema}.groups where groups.id = grouped.parent offset 0) as one
)
select one.id
from (select id from grouped order by id) as named
cross join lateral (select groups.id from {schema}.groups where groups.id = named.id for no key update) as one
