-- A new group; in a parent it is one of that group's members (B7). Returns its id, nothing if it is known.
with made as (
    insert into {schema}.groups (id, created_at, then_job, end_job, parent)
    values ({id}::text, {schema}.clock({now}::int8), {then_job}::text, {end_job}::text, {parent}::text)
    on conflict (id) do nothing
    returning id, parent
), joined as (
    insert into {schema}.group_joins (group_id, count) select parent, 1 from made where parent is not null
)
select id from made
