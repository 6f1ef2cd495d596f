-- N6: idle lanes are forgotten; the caller holds their locks. Returns how many.
with gone as (
    delete from {schema}.lanes where ctid = any (array(
        select first.at_ctid
        from unnest({queue}::text[], {lane}::text[]) as given (queue, lane)
        cross join lateral (
            select lanes.ctid as at_ctid from {schema}.lanes
            where lanes.queue = given.queue and lanes.lane = given.lane
            offset 0
        ) as first
    ))
    returning lane
)
select count(*) from gone
