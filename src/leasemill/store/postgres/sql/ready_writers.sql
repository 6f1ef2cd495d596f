-- The transactions that may have put rows into ready and not committed them: they hold a lock on it from before their
-- statement's snapshot until after their rows are visible. The SQL function reads the clock as it locks queues or jobs.
select distinct virtualtransaction from pg_catalog.pg_locks
where locktype = 'relation' and granted and mode not in ('AccessShareLock', 'RowShareLock', 'ShareUpdateExclusiveLock')
    and database = (select oid from pg_catalog.pg_database where datname = current_database())
    and relation = any (array['{schema}.ready', '{schema}.jobs', '{schema}.queues']::regclass[])
