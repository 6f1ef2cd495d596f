-- Groups as they stand, with the members that their rows do not count yet, as one JSON document. Locks nothing.
select coalesce(json_agg(one), '[]')::text from (
    select known.*, joins.count as joins, joins.members as joined
    from {schema}.groups as known
    cross join lateral (
        select count(*) as count, coalesce(sum(group_joins.count), 0)::int8 as members
        from {schema}.group_joins where group_joins.group_id = known.id
    ) as joins
    where known.id = any ({groups}::text[])
) as one
