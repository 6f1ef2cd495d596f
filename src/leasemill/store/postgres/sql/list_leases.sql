-- Timed leases in the order of their fences, of one worker or of all. Reads every lease that is held, of which there are
-- as many as workers have slots.
select jobs.id, jobs.queue, jobs.kind, held.attempt, held.fence, held.token, held.worker, held.leased_at,
    held.expires_at, held.started_at
from (
    select leases.no, leases.attempt, leases.fence, leases.token, leases.worker, leases.leased_at, leases.expires_at,
        leases.started_at
    from {schema}.leases
    where leases.fence > {after}::int8 and leases.expires_at < 9223372036854775807
        and ({worker}::text is null or leases.worker = {worker}::text)
    order by leases.fence
    limit {limit}::int8
) as held
join {schema}.jobs on jobs.no = held.no
order by held.fence
