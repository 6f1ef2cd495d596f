-- The early look of a user's commit: whether its lease is held, or has committed. Returns which; locks nothing.
-- From here the transaction may stand still as long as its handler may run: then its session ends, and what it locked.
select case when committed_at is null then 'held' else 'committed' end as status,
    set_config('idle_in_transaction_session_timeout', {idle_ms}::text, true) from {schema}.leases
where no = (select jobs.no from {schema}.jobs where jobs.id = {id}::text)
    and token = {token}::text and (committed_at is not null or expires_at > {schema}.clock({now}::int8))
