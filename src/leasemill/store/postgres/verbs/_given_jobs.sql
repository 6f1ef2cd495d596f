-- The jobs of an enqueue, from a column each. Most columns are NULL in most batches.
given as (
    select turn, id, queue, kind, payload, lane, priority, run_at, delay_us, policy::int8[] as policy, headers, rules, group_id
    from unnest(
        {ids}::text[], {queues}::text[], {kinds}::text[], {payloads}::text[], {lanes}::text[], {priorities}::int8[],
        {run_ats}::int8[], {delays}::int8[], {policies}::text[], {headers}::text[], {rules}::text[], {group_ids}::text[]
    ) with ordinality as given (id, queue, kind, payload, lane, priority, run_at, delay_us, policy, headers, rules, group_id,
        turn)
)
