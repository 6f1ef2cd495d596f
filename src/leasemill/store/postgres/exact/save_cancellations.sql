-- Who cancelled a job, when and why: the latest, kept when the job is redriven.
insert into leasemill.cancellations (
    no, at, by_whom, reason
)
select
    no, at, by_whom, reason
from unnest(
    %(no)b::int8[], %(at)b::int8[], %(by_whom)b::text[], %(reason)b::text[]
) with ordinality as given (
    no, at, by_whom, reason, turn_given
)
order by turn_given
on conflict (no) do update set at = excluded.at, by_whom = excluded.by_whom, reason = excluded.reason
