-- Whether leases have expired, looked for only if nothing was granted.
not exists (select from settled) and exists (
            select from {schema}.leases
            where leases.expires_at >= least({expired_from}::int8, now) - 5000000 and leases.expires_at <= now
                and leases.expires_at < 9223372036854775807
        )
