-- O8: what an operator did; the latest 1,000 are kept.
with made as (
    insert into leasemill.actions (
        at, verb, by_whom, target, reason
    )
    select
        at, verb, by_whom, target, reason
    from unnest(
        %(at)b::int8[], %(verb)b::text[], %(by_whom)b::text[], %(target)b::text[], %(reason)b::text[]
    ) with ordinality as given (
        at, verb, by_whom, target, reason, turn_given
    )
    order by turn_given
    returning number
)
delete from leasemill.actions
where number <= (
    select number from (select number from leasemill.actions union all select number from made) as known
    order by number desc offset 1000 limit 1
)
