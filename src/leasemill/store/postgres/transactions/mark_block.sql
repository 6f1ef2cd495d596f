-- Marks a transaction, until it ends.
select set_config('leasemill.block', {block}::text, true)
