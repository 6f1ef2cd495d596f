-- Waits for every claim and report that is under way, and keeps others waiting until the transaction ends.
lock table {schema}.leases in share row exclusive mode
