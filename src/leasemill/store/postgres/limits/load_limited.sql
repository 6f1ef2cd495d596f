-- A claim under limits, third: what may be granted, as one JSON document. In the order of the claim: the first jobs of ready; the
-- first gates that are open, the first lines at each and the first jobs in each line; and of every limit that one of these names
-- the places held, the rate used and the numbers. `room`: what a gate lets through at most, so that no more is loaded. A queue whose
-- own limit is full, or for which the claim has no slot, is left out.
-- Runs under the locks of the limits; locks the jobs, and skips one that a user's transaction or an operator is about to change.
with time as materialized (
    select {schema}.clock({now}::int8) as now
), known as materialized (
    select name, declared, set_terms, coalesce(set_terms[1], declared[1]) as places, rate.per_us / rate.count as interval_us, rate.burst
    from {schema}.limits cross join lateral (
        select coalesce(set_terms[2], declared[2]) as count,
            case when set_terms[2] is null then declared[3] else set_terms[3] end as per_us,
            coalesce(case when set_terms[2] is null then declared[4] else set_terms[4] end, 1) as burst
    ) as rate
    where name = any ({names}::text[])
), served as materialized (
    select given.queue, given.turn
    from unnest({queues}::text[]) with ordinality as given (queue, turn)
    cross join lateral (
        select queues.name from {schema}.queues
        where queues.name = given.queue and queues.mode <> 'acquire' and not queues.is_paused
        offset 0
    ) as queue
    left join known on known.name = 'queue:' || given.queue
    where known.name is null or ({has_slots}::bool and (
        select count(*) from {schema}.leases where leases.queue = given.queue and leases.is_limited
    ) < known.places)
), claimable as materialized (
    select served.turn, served.queue, first.*
    from time cross join (select * from served order by turn) as served
    cross join generate_series(0, 9) as ranks (rank)
    cross join lateral (
        select ready.rank, ready.available_at, ready.seq, coalesce(ready.no, ready.seq) as no, ready.attempt
        from {schema}.ready
        where ready.queue = served.queue and ready.rank = ranks.rank and ready.available_at <= time.now
            and ready.available_at >= coalesce((
                select low_at from {schema}.watermarks
                where watermarks.queue = served.queue and watermarks.rank = ranks.rank and low_at <= time.now
            ), 0)
        order by ready.available_at, ready.seq
        limit {window}::int8
        for update skip locked
    ) as first
    limit {window}::int8
), gate as materialized (
    select served.turn, first.*, (
        select greatest(1, least(
            known.places - (
                select count(*) from {schema}.places where places.name = first.name and places.key = first.key
            ),
            case when known.interval_us > 0 then known.burst + coalesce((
                select least(0, time.now - tat) / known.interval_us from {schema}.rates
                where rates.name = first.name and rates.key = first.key
            ), 0) end
        )) from known where known.name = first.name
            and (known.places is not null or known.interval_us > 0)
    ) as room
    from time cross join served cross join lateral (
        select gates.queue, gates.name, gates.key, gates.rank, gates.available_at, gates.seq from {schema}.gates
        where gates.queue = served.queue and gates.is_open
        order by gates.rank, gates.available_at, gates.seq
        limit {gates}::int8
    ) as first
    order by served.turn, first.rank, first.available_at, first.seq
    limit {gates}::int8
), line as materialized (
    select gate.turn, gate.room, gate.name as gate_name, gate.key as gate_key, first.*
    from gate cross join lateral (
        select lines.queue, lines.id, lines.limits, lines.rank, lines.available_at, lines.seq from {schema}.lines
        where lines.queue = gate.queue and lines.name = gate.name and lines.key = gate.key
        order by lines.rank, lines.available_at, lines.seq
        limit least({lines}::int8, gate.room)
    ) as first
), standing as materialized (
    select line.turn, line.id, first.*
    from line cross join lateral (
        select parked.rank, parked.available_at, parked.seq, parked.no, parked.attempt from {schema}.parked
        where parked.queue = line.queue and parked.line = line.id
        order by parked.rank, parked.available_at, parked.seq
        limit least({jobs}::int8, line.room)
        for update skip locked
    ) as first
), candidate as materialized (
    select claimable.*, (job.rules::json -> 1)::text as limits, null::uuid as line
    from claimable cross join lateral (select rules from {schema}.jobs where jobs.no = claimable.no offset 0) as job
    union all
    select standing.turn, null, standing.rank, standing.available_at, standing.seq, standing.no, standing.attempt, null, standing.id
    from standing
), used as materialized (
    select distinct use ->> 0 as name, coalesce(use ->> 1, '') as key
    from (select limits from candidate where limits is not null union select limits from line) as one
    cross join lateral json_array_elements(one.limits::json) as use
    union
    select name, key from gate
    union
    select name, '' from known where name like 'queue:%'
)
select json_build_object(
    'now', (select now from time),
    'is_repeated', exists (
        select from {schema}.requests cross join lateral (
            select from {schema}.leases, time
            where leases.no = any (requests.nos) and leases.request_id = requests.id and leases.expires_at > time.now
            offset 0
        ) as held
        where requests.id = {request_id}::text
    ),
    'has_arrived', exists (select from {schema}.arrivals),
    'has_expired', exists (
        select from {schema}.leases, time
        where leases.expires_at >= least({expired_from}::int8, time.now) - 5000000 and leases.expires_at <= time.now
            and leases.expires_at < 9223372036854775807
    ),
    'candidates', (
        select json_agg(json_build_array(turn, rank, available_at, seq, limits, line, case when attempt > 0 then array(
            select token from {schema}.executions
            where executions.no = candidate.no and executions.token = any ({tokens}::text[])
        ) end))
        from candidate
    ),
    'gates', (select json_agg(json_build_array(turn, rank, available_at, seq, name, key, room)) from gate),
    'lines', (
        select json_agg(json_build_array(turn, rank, available_at, seq, id, limits, gate_name, gate_key)) from line
    ),
    'terms', (select json_agg(json_build_array(name, declared, set_terms)) from known),
    'uses', (
        select json_agg(json_build_array(used.name, used.key, held.count, coalesce(rate.tat, 0)))
        from used cross join lateral (
            select case when used.name like 'queue:%' then (
                select count(*) from {schema}.leases where leases.queue = substr(used.name, 7) and leases.is_limited
            ) else (
                select count(*) from {schema}.places where places.name = used.name and places.key = used.key
            ) end as count
        ) as held
        left join lateral (
            select tat from {schema}.rates where rates.name = used.name and rates.key = used.key offset 0
        ) as rate on true
    )
)::text
