-- Lowers the watermarks that have passed a job, and those that are ahead of the clock. Returns them. Walks whatever is behind
-- the watermarks, dead or not.
with passed as materialized (
    select w.queue, w.rank, first_at
    from {schema}.watermarks as w left join lateral (
        select ready.available_at as first_at from {schema}.ready
        where ready.queue = w.queue and ready.rank = w.rank and ready.available_at < w.low_at
        order by ready.available_at limit 1
    ) as first on true
    where first_at is not null or w.low_at > (select {schema}.clock({now}::int8))
    order by w.queue, w.rank
)
update {schema}.watermarks as w set low_at = coalesce(first_at, 0), next_at = null
from passed where w.queue = passed.queue and w.rank = passed.rank
returning w.queue, w.rank, w.low_at
