-- A claim under limits: how far rates are used by what was granted (T10, T11). `tat` is what was loaded, `used` what the grants
-- use of it. Charged from now on, not from when it was chosen: a claim that stood still in between would leave a burst behind its own.
insert into {schema}.rates (name, key, tat)
select name, key, greatest(tat, {schema}.clock({now}::int8)) + used
from json_to_recordset({rates}::json) as charged (name text, key text, tat int8, used int8)
on conflict (name, key) do update set tat = excluded.tat
