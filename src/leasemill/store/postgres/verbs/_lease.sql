-- A lease and its job, as `rows.lease.GrantedRow` reads them.
s.id, s.queue, s.kind, s.payload, s.lane, s.priority, s.run_at, s.delay_us, s.policy, s.headers,
    s.rules, s.token, s.attempt, s.fence, {worker}::text, s.now, s.expires_at, s.terms, s.retries, s.expirations,
    s.created_at, s.available_at, s.seq, s.no
