-- When keys were used last; never moves back. The rows are locked in the order of their ids: two servers write at once.
with used as materialized (
    select access_keys.id, given.at
    from unnest({ids}::text[], {ats}::int8[]) as given (id, at)
    join {schema}.access_keys on access_keys.id = given.id
    order by access_keys.id
    for no key update of access_keys
)
update {schema}.access_keys
set last_used_at = greatest(access_keys.last_used_at, used.at)
from used where access_keys.id = used.id
