-- What RESET ALL and its like leave of a user's block in its session: releases the advisory locks, and returns whether there are
-- prepared statements of the user's. Those psycopg made are not SQL's.
select exists (
    select from pg_catalog.pg_prepared_statements as one where one.from_sql and not starts_with(one.name, 'leasemill_')
) from pg_catalog.pg_advisory_unlock_all()
