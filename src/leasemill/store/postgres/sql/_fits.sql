-- Whether a job is one that a filter takes, as far as its own row shows.
({queue}::text is null or job.queue = {queue}::text)
    and ({kind}::text is null or job.kind = {kind}::text)
    and ({lane}::text is null or job.lane = {lane}::text)
    and ({group_id}::text is null or job.group_id = {group_id}::text)
    and ({unique_key}::text is null or job.rules::json #>> '{{0,0}}' = {unique_key}::text)
    and ({headers}::text is null or job.headers::jsonb @> {headers}::jsonb)
