-- commit: the marker and the result, once, while the lease is held (X4, X6). Returns whether it was, and had not committed.
-- Locks the lease's row.
select {schema}.commit_lease({id}::text, {token}::text, {result}::text, {now}::int8, false)
