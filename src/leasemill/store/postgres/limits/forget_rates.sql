-- Rates that have not been in use for a minute cost nothing (T15: a clock that goes back by less gives no grants).
-- Skips those that a claim is about to charge. Returns how many were forgotten.
with gone as (
    delete from {schema}.rates where ctid = any (array(
        select rates.ctid from {schema}.rates
        where rates.tat <= {schema}.clock({now}::int8) - 60000000
        limit {limit}::int8
        for update skip locked
    ))
    returning 1
)
select count(*) from gone
