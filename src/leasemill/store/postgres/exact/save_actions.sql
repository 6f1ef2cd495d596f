-- O8: what an operator did; the latest 1,000 are kept.
with made as (
    insert into {schema}.actions (
        at, verb, by_whom, target, reason
    )
    select
        at, verb, by_whom, target, reason
    from unnest(
        {at}::int8[], {verb}::text[], {by_whom}::text[], {target}::text[], {reason}::text[]
    ) with ordinality as given (
        at, verb, by_whom, target, reason, turn_given
    )
    order by turn_given
    returning number
)
delete from {schema}.actions
where number <= (
    select number from (select number from {schema}.actions union all select number from made) as known
    order by number desc offset 1000 limit 1
)
