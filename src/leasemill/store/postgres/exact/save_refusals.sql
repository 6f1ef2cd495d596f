-- L5: reports that were refused, once for each token and verb.
insert into {schema}.refusals (
    no, token, verb, worker, attempt, current_attempt, reason, at
)
select
    no, token, verb, worker, attempt, current_attempt, reason, at
from unnest(
    {no}::int8[], {token}::text[], {verb}::text[], {worker}::text[], {attempt}::int8[],
    {current_attempt}::int8[], {reason}::text[], {at}::int8[]
) with ordinality as given (
    no, token, verb, worker, attempt, current_attempt, reason, at, turn_given
)
order by turn_given
on conflict (no, token, verb) do nothing
