-- A claim under limits: where the lines and gates that it looked at stand now; those that it found empty go. JSON in.
with line_gone as (
    delete from {schema}.lines where ctid = any (array(
        select line.at_ctid
        from json_populate_recordset(null::{schema}.lines, {lines_gone}::json) as given
        cross join lateral (
            select lines.ctid as at_ctid from {schema}.lines where lines.queue = given.queue and lines.id = given.id offset 0
        ) as line
    ))
), line as materialized (
    select given.*, line.at_ctid
    from json_populate_recordset(null::{schema}.lines, {lines_left}::json) as given
    cross join lateral (
        select lines.ctid as at_ctid from {schema}.lines where lines.queue = given.queue and lines.id = given.id offset 0
    ) as line
), line_left as (
    update {schema}.lines
    set name = line.name, key = line.key, rank = line.rank, available_at = line.available_at, seq = line.seq
    from line where lines.ctid = line.at_ctid
), gate_gone as (
    delete from {schema}.gates where ctid = any (array(
        select gate.at_ctid
        from json_populate_recordset(null::{schema}.gates, {gates_gone}::json) as given
        cross join lateral (
            select gates.ctid as at_ctid from {schema}.gates
            where gates.name = given.name and gates.key = given.key and gates.queue = given.queue
            offset 0
        ) as gate
    ))
), gate as materialized (
    select given.*, gate.at_ctid
    from json_populate_recordset(null::{schema}.gates, {gates_left}::json) as given
    cross join lateral (
        select gates.ctid as at_ctid from {schema}.gates
        where gates.name = given.name and gates.key = given.key and gates.queue = given.queue
        offset 0
    ) as gate
), gate_left as (
    update {schema}.gates
    set is_open = gate.is_open, opens_at = gate.opens_at, rank = gate.rank, available_at = gate.available_at, seq = gate.seq
    from gate where gates.ctid = gate.at_ctid
)
select 0
