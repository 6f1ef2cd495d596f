-- commit in a transaction of the user's: the marker and the result, at COMMIT, if the lease is held then (X4, X6). Fails with LM001.
-- `block`: what the transaction was marked with; fails with LM003 if this is another transaction.
select case when {block}::text is null or current_setting('leasemill.block', true) = {block}::text then 0
        else {schema}.fail('LM003', 'the transaction was ended inside its block') end as is_same,
    {schema}.guard({id}::text, {token}::text, {result}::text, {now}::int8)
