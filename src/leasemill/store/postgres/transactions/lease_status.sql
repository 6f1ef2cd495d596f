-- Whether a lease is held, or has committed: locks nothing.
select {schema}.lease_status({id}::text, {token}::text, {now}::int8)
