-- Jobs as they stand, by number or by id, with all that belongs to them, as one JSON document. One statement, so one moment.
-- Locks nothing.
with found as materialized (
    select no from unnest({nos}::int8[]) as given (no)
    union
    select job.no from unnest({ids}::text[]) as given (id)
    cross join lateral (select jobs.no from {schema}.jobs where jobs.id = given.id offset 0) as job
)
select json_build_object(
    'jobs', (
        select json_agg(one)
        from found cross join lateral (select * from {schema}.jobs where jobs.no = found.no offset 0) as one
    ),
    'leases', (
        select json_agg(one)
        from found cross join lateral (select * from {schema}.leases where leases.no = found.no offset 0) as one
    ),
    'executions', (
        select json_agg(one order by one.no, one.attempt)
        from found cross join lateral (select * from {schema}.executions where executions.no = found.no offset 0) as one
    ),
    'kept', (
        select json_agg(one)
        from found cross join lateral (select * from {schema}.kept where kept.no = found.no offset 0) as one
    ),
    'marks', (
        select json_agg(one)
        from found cross join lateral (select * from {schema}.marks where marks.no = found.no offset 0) as one
    ),
    'cancellations', (
        select json_agg(one)
        from found
        cross join lateral (select * from {schema}.cancellations where cancellations.no = found.no offset 0) as one
    ),
    'refusals', (
        select json_agg(one order by one.number)
        from found cross join lateral (select * from {schema}.refusals where refusals.no = found.no offset 0) as one
    )
)::text
