-- A claim under limits: how far rates are used by what was granted (T11).
insert into {schema}.rates (name, key, tat)
select name, key, tat from json_populate_recordset(null::{schema}.rates, {rates}::json)
on conflict (name, key) do update set tat = excluded.tat
