-- commit in a transaction of the user's: the marker and the result, at COMMIT, if the lease is held then (X4, X6). Fails with LM001.
select {schema}.guard({id}::text, {token}::text, {result}::text, {now}::int8)
