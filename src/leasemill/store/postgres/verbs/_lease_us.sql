-- I5: the length of the lease, from the same policies as the other terms.
cross join lateral (
        select coalesce(j.policy[2], p.policy[2], k.policy[2], d[2]) as lease_us
    ) as term
