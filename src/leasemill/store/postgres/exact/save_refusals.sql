-- L5: reports that were refused, once for each token and verb.
insert into leasemill.refusals (
    no, token, verb, worker, attempt, current_attempt, reason, at
)
select
    no, token, verb, worker, attempt, current_attempt, reason, at
from unnest(
    %(no)b::int8[], %(token)b::text[], %(verb)b::text[], %(worker)b::text[], %(attempt)b::int8[],
    %(current_attempt)b::int8[], %(reason)b::text[], %(at)b::int8[]
) with ordinality as given (
    no, token, verb, worker, attempt, current_attempt, reason, at, turn_given
)
order by turn_given
on conflict (no, token, verb) do nothing
