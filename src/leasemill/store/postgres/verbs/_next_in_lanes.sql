-- N4: the job that is next in each lane. A statement of the same transaction has locked the lanes before, so that what
-- lined up before is seen.
given as materialized (
    select lane.at_ctid as lane_ctid, first.*
    from unnest({lane_queues}::text[], {lanes}::text[]) as given (queue, lane)
    cross join lateral (
        select lanes.ctid as at_ctid from {schema}.lanes
        where lanes.queue = given.queue and lanes.lane = given.lane
        offset 0
    ) as lane
    left join lateral (
        select waiting.ctid as at_ctid, waiting.* from {schema}.waiting
        where waiting.queue = given.queue and waiting.lane = given.lane
        order by waiting.turn limit 1
    ) as first on true
), next as materialized (
    select * from given where no is not null
)
