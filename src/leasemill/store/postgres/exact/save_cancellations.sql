-- Who cancelled a job, when and why: the latest, kept when the job is redriven.
insert into {schema}.cancellations (
    no, at, by_whom, reason
)
select
    no, at, by_whom, reason
from unnest(
    {no}::int8[], {at}::int8[], {by_whom}::text[], {reason}::text[]
) with ordinality as given (
    no, at, by_whom, reason, turn_given
)
order by turn_given
on conflict (no) do update set at = excluded.at, by_whom = excluded.by_whom, reason = excluded.reason
