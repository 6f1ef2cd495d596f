-- What is on record about limits, and how the queues of their own limits are used. Runs under the locks of the limits.
select {schema}.clock({now}::int8) as now, (
    select json_agg(json_build_object('name', name, 'declared', declared, 'declared_at', declared_at, 'declared_by', declared_by,
        'set', set_terms, 'set_at', set_at, 'set_by', set_by, 'reason', reason))::text
    from {schema}.limits where name = any ({names}::text[])
) as records, (
    select json_agg(json_build_array(name, mode))::text from {schema}.queues where 'queue:' || name = any ({names}::text[])
) as queues, array(
    select queue from {schema}.limit_queues where name = any ({names}::text[]) and name = 'queue:' || queue
) as limited
