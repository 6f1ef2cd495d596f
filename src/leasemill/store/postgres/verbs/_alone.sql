-- C5: a claim that is repeated while it is under way fails: tried again, it waits for the other, and returns its leases.
case when not pg_try_advisory_xact_lock({request_key}::int8)
        then {schema}.fail('40001', 'the same claim is under way') end as alone
