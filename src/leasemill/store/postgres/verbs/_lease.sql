-- A lease and its job, as `rows.lease.GrantedRow` reads them. The numbers that every lease has are one array: a row that is
-- read cell by cell costs a worker more than anything else it does for a job here.
s.id, s.queue, s.kind, s.payload, s.lane, s.run_at, s.delay_us, s.policy, s.headers, s.rules, s.token, {worker}::text, s.terms,
    array[s.priority, s.attempt, s.fence, s.now, s.expires_at, coalesce(s.retries, 0), coalesce(s.expirations, 0), s.created_at,
        s.available_at, s.seq, s.no]::int8[]
