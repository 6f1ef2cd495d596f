-- extend: a full lease from now, never a shorter one than is held (L9).
-- Returns the held leases and until when. Locks the leases' rows; one that somebody else has locked counts as held.
with given as materialized (
    select job.no, job.id, given.token
    from unnest(%(ids)b::text[], %(tokens)b::text[]) with ordinality as given (id, token, turn)
    cross join lateral (select jobs.no, jobs.id from leasemill.jobs where jobs.id = given.id offset 0) as job
    order by job.no
), held as materialized (
    select lease.no, given.id, lease.expires_at
    from given cross join lateral (
        select leases.no, leases.expires_at from leasemill.leases
        where leases.no = given.no and leases.token = given.token
            and leases.expires_at > leasemill.clock(%(now)b::int8)
        offset 0
    ) as lease
), locked as materialized (
    select lease.no
    from held cross join lateral (
        select leases.no from leasemill.leases
        where leases.no = held.no and leases.expires_at > leasemill.clock(%(now)b::int8)
            and coalesce(leases.terms[2], 30000000) < 9223372036854775807
            and leases.expires_at - leasemill.clock(%(now)b::int8) < coalesce(leases.terms[2], 30000000)
        for update skip locked
    ) as lease
), extended as (
    update leasemill.leases
    set expires_at = greatest(expires_at, leasemill.clock(%(now)b::int8) + coalesce(terms[2], 30000000)),
        updated_at = leasemill.clock(%(now)b::int8)
    where no = any (array(select no from locked))
    returning no, expires_at
)
select held.id, coalesce(
    (array(select expires_at from extended))[array_position(array(select no from extended), held.no)], held.expires_at
) as expires_at
from held
