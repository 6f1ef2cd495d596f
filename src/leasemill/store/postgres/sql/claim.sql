-- claim: leases on the first claimable jobs, queue by queue in the caller's order, priority by priority.
-- C1, C2: due, not paused; by priority, available_at, sequence. C5: a repeated request gets its held leases and no others.
-- I2: stops before a job that has had the token meant for it. I5: the terms are settled here.
-- Returns the leases with their jobs, by fence: drawn in the order of number, which no join here may change.
-- Locks the ready rows it takes; skips those others hold.
with gate as materialized (
    select pg_try_advisory_xact_lock_shared(%(request_key)b::int8) as is_open
), repeated as materialized (
    select * from leasemill.leases
    where request_id = %(request_id)b::text and expires_at > leasemill.clock(%(now)b::int8)
), place as materialized (
    select place.queue, place.rank, place.from_at, place.from_seq, place.turn, queues.policy,
        leasemill.clock(%(now)b::int8) as now
    from unnest(%(queues)b::text[], %(ranks)b::int8[], %(from_ats)b::int8[], %(from_seqs)b::int8[])
        with ordinality as place (queue, rank, from_at, from_seq, turn)
    cross join lateral (
        select queues.policy from leasemill.queues
        where queues.name = place.queue and queues.mode = 'claim' and not queues.is_paused
        offset 0
    ) as queues
    where not exists (select from repeated)
    order by place.turn
), claimable as materialized (
    select place.turn, place.policy, place.now, first.*
    from gate cross join place cross join lateral (
        select ready.ctid as at_ctid, ready.rank, ready.available_at, ready.seq, ready.no, ready.attempt, ready.retries,
            ready.expirations
        from leasemill.ready
        where ready.queue = place.queue and ready.rank = place.rank and ready.available_at <= place.now
            and (ready.available_at, ready.seq) >= (place.from_at, place.from_seq)
        order by ready.available_at, ready.seq
        limit %(limit)b::int8
        for update skip locked
    ) as first
    limit %(limit)b::int8
), numbered as (
    select *, row_number() over (order by turn, available_at, seq) as number from claimable
), stop as (
    select min(numbered.number) as number
    from numbered cross join lateral (
        select from leasemill.executions
        where executions.no = numbered.no and executions.token = (%(tokens)b::text[])[numbered.number]
        offset 0
    ) as spent
    where numbered.attempt > 0
), picked as materialized (
    select * from numbered where number < coalesce((select number from stop), number + 1)
), taken as (
    delete from leasemill.ready where ctid = any (array(select at_ctid from picked))
), kinds as materialized (
    select kind, policy::int8[] as policy
    from unnest(%(kinds)b::text[], %(kind_policies)b::text[]) as kinds (kind, policy)
), settled as materialized (
    select job.*, picked.rank, picked.seq, picked.available_at, picked.attempt + 1 as attempt, picked.retries,
        picked.expirations, nextval('leasemill.fence') as fence, (%(tokens)b::text[])[picked.number] as token, picked.now,
        picked.now + term.lease_us as expires_at,
        case when job.policy is not null or picked.policy is not null or kinds.policy is not null then array[
            coalesce(job.policy[1], picked.policy[1], kinds.policy[1], 3),
            term.lease_us,
            coalesce(job.policy[3], picked.policy[3], kinds.policy[3], 3 * term.lease_us),
            coalesce(job.policy[4], picked.policy[4], kinds.policy[4], 5),
            coalesce(job.policy[5], picked.policy[5], kinds.policy[5], 500000),
            coalesce(job.policy[6], picked.policy[6], kinds.policy[6], 30000000),
            coalesce(job.policy[7], picked.policy[7], kinds.policy[7], 0)
        ] end as terms
    from (select * from picked order by number) as picked
    cross join lateral (select * from leasemill.jobs where jobs.no = picked.no offset 0) as job
    left join lateral (select policy from kinds where kinds.kind = job.kind offset 0) as kinds on true
    cross join lateral (select coalesce(job.policy[2], picked.policy[2], kinds.policy[2], 30000000) as lease_us) as term
), granted as (
    insert into leasemill.leases (no, queue, lane, rank, seq, available_at, attempt, retries, expirations, fence, token,
        worker, request_id, leased_at, updated_at, expires_at, terms)
    select no, queue, lane, rank, seq, available_at, attempt, retries, expirations, fence, token, %(worker)b::text,
        %(request_id)b::text, now, now, expires_at, terms
    from settled
)
select id, queue, kind, payload, lane, priority, run_at, delay_us, policy, token, attempt, fence,
    %(worker)b::text, now, expires_at, terms, retries, expirations, created_at, available_at, seq, no
from settled
union all
select job.id, job.queue, job.kind, job.payload, job.lane, job.priority, job.run_at, job.delay_us, job.policy, leases.token,
    leases.attempt, leases.fence, leases.worker, leases.leased_at, leases.expires_at, leases.terms, leases.retries,
    leases.expirations, job.created_at, leases.available_at, leases.seq, leases.no
from repeated as leases
cross join lateral (select * from leasemill.jobs where jobs.no = leases.no offset 0) as job
order by fence
