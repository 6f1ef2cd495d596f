-- Lowers the watermarks that have passed a job or a lease, and those that are ahead of the clock. Returns them. Walks whatever is
-- behind the watermarks, dead or not.
with passed as materialized (
    select w.queue, w.rank, coalesce(first_at, lease_at) as at
    from {schema}.watermarks as w
    left join lateral (
        select ready.available_at as first_at from {schema}.ready
        where ready.queue = w.queue and ready.rank = w.rank and ready.available_at < w.low_at
        order by ready.available_at limit 1
    ) as first on true
    left join lateral (
        select leases.expires_at as lease_at from {schema}.leases
        where w.rank = -1 and leases.expires_at < w.low_at and leases.expires_at < 9223372036854775807
        order by leases.expires_at limit 1
    ) as lease on true
    where first_at is not null or lease_at is not null or w.low_at > (select {schema}.clock({now}::int8))
    order by w.queue, w.rank
)
update {schema}.watermarks as w set low_at = coalesce(at, 0), next_at = null
from passed where w.queue = passed.queue and w.rank = passed.rank
returning w.queue, w.rank, w.low_at
