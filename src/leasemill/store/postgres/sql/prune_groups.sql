-- prune, of groups: those that are over, of which no member and no group in them is kept, by age and by number, as successes
-- are (B4, O7). Returns how many. The caller holds the retention lock. Passes over rows that somebody has locked.
with over as materialized (
    select groups.id, groups.ended_at, groups.number as place from {schema}.groups
    where groups.is_over
        and not exists (select from {schema}.jobs where jobs.group_id = groups.id offset 0)
        and not exists (select from {schema}.groups as part where part.parent = groups.id offset 0)
    order by groups.ended_at, groups.number
    limit least({keep}::int8, 1000000000) + {limit}::int8
), listed as (
    select id, ended_at, row_number() over (order by ended_at, place) as number, count(*) over () as count from over
), gone as (
    delete from {schema}.groups where id = any (array(
        select locked.id from (
            select id from listed
            where number <= {limit}::int8 and (ended_at < {before}::int8 or number <= count - {keep}::int8)
        ) as chosen
        cross join lateral (
            select groups.id from {schema}.groups where groups.id = chosen.id for update skip locked
        ) as locked
    ))
    returning id
), joins_gone as (
    delete from {schema}.group_joins where group_id in (select id from gone)
)
select count(*) from gone
