-- Jobs an operator redrove.
insert into {schema}.marks (
    no, seq, redriven_attempt, redriven_at
)
select
    no, seq, redriven_attempt, redriven_at
from unnest(
    {no}::int8[], {seq}::int8[], {redriven_attempt}::int8[], {redriven_at}::int8[]
) with ordinality as given (
    no, seq, redriven_attempt, redriven_at, turn_given
)
order by turn_given
on conflict (no) do update set seq = excluded.seq, redriven_attempt = excluded.redriven_attempt,
    redriven_at = excluded.redriven_at
