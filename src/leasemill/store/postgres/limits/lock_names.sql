-- Locks limits by their names, in the order in which claims do.
select count(pg_advisory_xact_lock(key)) from (
    select distinct hashtextextended('{schema}.limits ' || name, 0) as key
    from unnest({names}::text[]) as given (name)
    order by key
) as named
