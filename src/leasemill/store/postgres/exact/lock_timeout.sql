-- Whoever waits longer in this transaction begins again, before the server takes two who wait for each other apart.
select set_config('lock_timeout', {milliseconds}::text, true)
