-- start: held leases become STARTED; one that was is left as it is (X3).
-- Returns how many are held and, if not all, which. Locks the leases' rows, in order.
with held as (
    update {schema}.leases
    set updated_at = case when started_at is null then {schema}.clock({now}::int8) else updated_at end,
        started_at = coalesce(started_at, greatest(leased_at, {schema}.clock({now}::int8)
            - ({ages}::int8[])[width_bucket(no, {nos}::int8[])]))
    where no = any ({nos}::int8[])
        and token = ({tokens}::text[])[width_bucket(no, {nos}::int8[])]
        and expires_at > {schema}.clock({now}::int8)
    returning no
)
select count(*) as count, case when count(*) < cardinality({nos}::int8[]) then array_agg(no) end as nos from held
