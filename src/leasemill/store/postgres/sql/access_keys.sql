-- Every key, the oldest first.
select id, name, digest, roles, queues, created_at, created_by, expires_at, revoked_at, revoked_by, last_used_at
from {schema}.access_keys
order by created_at, id
