-- Jobs as they stand, by number or by id, with all that belongs to them, as one JSON document. One statement, so one moment.
-- Locks nothing.
with found as materialized (
    select array(
        select no from unnest({nos}::int8[]) as given (no)
        union
        select job.no from unnest({ids}::text[]) as given (id)
        cross join lateral (select jobs.no from {schema}.jobs where jobs.id = given.id offset 0) as job
    ) as nos
)
select json_build_object(
    'jobs', (select json_agg(one) from {schema}.jobs as one where no = any ((select nos from found)::int8[])),
    'leases', (select json_agg(one) from {schema}.leases as one where no = any ((select nos from found)::int8[])),
    'executions', (select json_agg(one order by one.no, one.attempt) from {schema}.executions as one where no = any ((select nos from found)::int8[])),
    'kept', (select json_agg(one) from {schema}.kept as one where no = any ((select nos from found)::int8[])),
    'marks', (select json_agg(one) from {schema}.marks as one where no = any ((select nos from found)::int8[])),
    'cancellations', (select json_agg(one) from {schema}.cancellations as one where no = any ((select nos from found)::int8[])),
    'refusals', (select json_agg(one order by one.number) from {schema}.refusals as one where no = any ((select nos from found)::int8[]))
)::text
