-- extend: a full lease from now, never a shorter one than is held (L9).
-- Returns the held leases and until when. Locks the leases' rows, waiting for none: one that somebody else
-- has locked keeps its end, and that is what is returned.
with held as materialized (
    select lease.no, lease.expires_at
    from unnest({nos}::int8[], {tokens}::text[]) as given (no, token)
    cross join lateral (
        select leases.no, leases.expires_at from {schema}.leases
        where leases.no = given.no and leases.token = given.token and leases.expires_at > {schema}.clock({now}::int8)
        offset 0
    ) as lease
    order by lease.no
), locked as materialized (
    select lease.no
    from held cross join lateral (
        select leases.no from {schema}.leases
        where leases.no = held.no and leases.expires_at > {schema}.clock({now}::int8)
            and coalesce(leases.terms[2], ({unwritten}::int8[])[2]) < 9223372036854775807
            and leases.expires_at - {schema}.clock({now}::int8) < coalesce(leases.terms[2], ({unwritten}::int8[])[2])
        for update skip locked
    ) as lease
), extended as (
    update {schema}.leases
    set expires_at = greatest(expires_at, {schema}.clock({now}::int8) + coalesce(terms[2], ({unwritten}::int8[])[2])),
        updated_at = {schema}.clock({now}::int8)
    where no = any (array(select no from locked))
    returning no, expires_at
)
select held.no, coalesce(extended.expires_at, held.expires_at) as expires_at
from held left join extended on extended.no = held.no
