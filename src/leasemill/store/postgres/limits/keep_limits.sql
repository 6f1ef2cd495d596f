-- What operators and code said about limits, as JSON: a record without numbers is forgotten. T6: who waits is looked at again by
-- the claims that follow. T14: rates that changed are used no further than `most_tat`.
-- Runs under the locks of the limits.
with given as materialized (
    select * from json_to_recordset({records}::json) as given (name text, declared int8[], declared_at int8, declared_by text,
        set int8[], set_at int8, set_by text, reason text, most_tat int8)
), gone as (
    delete from {schema}.limits where name in (select name from given where declared is null and set is null)
), kept as (
    insert into {schema}.limits (name, declared, declared_at, declared_by, set_terms, set_at, set_by, reason)
    select name, declared, declared_at, declared_by, set, set_at, set_by, reason from given
    where declared is not null or set is not null
    on conflict (name) do update set declared = excluded.declared, declared_at = excluded.declared_at,
        declared_by = excluded.declared_by, set_terms = excluded.set_terms, set_at = excluded.set_at, set_by = excluded.set_by,
        reason = excluded.reason
), cut as (
    update {schema}.rates set tat = given.most_tat from given where rates.name = given.name and rates.tat > given.most_tat
), opened as (
    update {schema}.gates set is_open = true, opens_at = null
    where name = any (array(select name from given)) and not is_open
)
select 0
