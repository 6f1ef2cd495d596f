-- The jobs of `given`. What follows is a filter, the order, and what happens to ids that are known.
insert into {schema}.jobs (id, queue, kind, payload, lane, priority, run_at, delay_us, policy, headers, rules, group_id,
        created_at)
    select id, queue, kind, payload, lane, priority, run_at, delay_us, policy, headers, rules, group_id,
        (select {schema}.clock({now}::int8))
    from given
