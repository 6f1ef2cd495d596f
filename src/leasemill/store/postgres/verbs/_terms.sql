-- I5: the terms of a lease are settled from the policies of the job (j), its queue (p) and its kind (k), and the defaults (d);
-- NULL for those that are not written.
case when coalesce(j.policy, p.policy, k.policy) is null then {written_defaults}::int8[]
        else nullif(array[
            coalesce(j.policy[1], p.policy[1], k.policy[1], d[1]),
            lease_us,
            coalesce(j.policy[3], p.policy[3], k.policy[3], {timeout_leases}::int8 * lease_us),
            coalesce(j.policy[4], p.policy[4], k.policy[4], d[4]),
            coalesce(j.policy[5], p.policy[5], k.policy[5], d[5]),
            coalesce(j.policy[6], p.policy[6], k.policy[6], d[6]),
            coalesce(j.policy[7], p.policy[7], k.policy[7], d[7])
        ], {unwritten}::int8[]) end as terms
