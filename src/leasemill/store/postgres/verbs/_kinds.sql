-- The policies of the kinds that have one.
kinds as materialized (
    select kind, policy::int8[] as policy
    from unnest({kinds}::text[], {policies}::text[]) as kinds (kind, policy)
)
