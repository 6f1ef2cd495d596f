-- When a new job is due (E3), and where its priority puts it among the jobs of its queue (C1): each stands once, and the server
-- writes it into the statements that call it.
create or replace function {schema}.due_at(created_at int8, run_at int8, delay_us int8) returns int8
language sql immutable parallel safe as $due_at$
    select case when run_at is null then created_at + coalesce(delay_us, 0) else greatest(created_at, run_at) end
$due_at$;

create or replace function {schema}.rank_of(priority int2) returns int4
language sql immutable parallel safe as $rank_of$
    select 9 - priority
$rank_of$;
