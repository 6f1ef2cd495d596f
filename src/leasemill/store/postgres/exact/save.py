"""The one statement that writes what a decision changed.

It has a part for each table concerned and no other: there are few combinations, and each is prepared once. A part must
find or write as many rows as it was given, else the statement fails and with it the transaction: a row had changed
before it was locked, and the whole is decided again.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from leasemill.kernel.model import ACTIONS_KEPT
from leasemill.kernel.state import State
from leasemill.kernel.transitions.actions import JOINED_AMONG, JOINED_WITHIN_US, TARGETS_KEPT
from leasemill.store.postgres.exact.change import Change
from leasemill.store.postgres.rows.tables import (
    ActionRow,
    CancellationRow,
    ExecutionRow,
    GroupRow,
    JobRow,
    KeptRow,
    KeyRow,
    LaneRow,
    LeaseRow,
    MarkRow,
    ParkedRow,
    QueueRow,
    ReadyRow,
    RefusalRow,
    Row,
    TallyRow,
    WaitingRow,
    action_row,
)
from leasemill.store.postgres.statements import Execute, Statement, statement
from leasemill.store.postgres.steps import Steps, send


class Table(NamedTuple):
    row: type[Row]
    key: tuple[str, ...]
    if_there: str = ""
    """The action for a row whose key is there; by default the statement fails."""


def _replaced(row: type[Row], key: tuple[str, ...]) -> Table:
    columns = [name for name in row.__struct_fields__ if name not in key]
    settings = ", ".join(f"{name} = excluded.{name}" for name in columns)
    return Table(row, key, f"on conflict ({', '.join(key)}) do update set {settings}")


TABLES: Final = {
    "queues": Table(
        QueueRow,
        ("name",),
        "on conflict (name) do update set is_paused = excluded.is_paused, policy = excluded.policy, "
        "mode = coalesce(queues.mode, excluded.mode) "
        "where queues.mode is null or excluded.mode is null "
        "or (queues.mode = 'acquire') = (excluded.mode = 'acquire')",  # I7: the mode stays
    ),
    "jobs": Table(
        JobRow,
        ("no",),
        "on conflict (no) do update set payload = excluded.payload, headers = excluded.headers, "
        "run_at = excluded.run_at, replaced = excluded.replaced, replaced_at = excluded.replaced_at",  # U8
    ),
    "unique_keys": _replaced(KeyRow, ("queue", "key")),
    "ready": _replaced(ReadyRow, ("queue", "rank", "available_at", "seq")),
    "parked": Table(ParkedRow, ("queue", "line", "rank", "available_at", "seq")),
    "waiting": _replaced(WaitingRow, ("queue", "lane", "turn")),
    "leases": _replaced(LeaseRow, ("no",)),
    "kept": _replaced(KeptRow, ("no",)),
    "marks": _replaced(MarkRow, ("no",)),
    "cancellations": _replaced(CancellationRow, ("no",)),
    "executions": Table(ExecutionRow, ("no", "slot")),
    "refusals": Table(RefusalRow, ("no", "token", "verb"), "on conflict do nothing"),  # counted: decided again
    "lanes": _replaced(LaneRow, ("queue", "lane")),
    "groups": Table(
        GroupRow,
        ("id",),
        "on conflict (id) do update set sealed_at = excluded.sealed_at, ended_at = excluded.ended_at, "
        "succeeded_at = excluded.succeeded_at, total = excluded.total, succeeded = excluded.succeeded, "
        "failed = excluded.failed, dead = excluded.dead, cancelled = excluded.cancelled, is_over = excluded.is_over",
    ),
    "tallies": Table(TallyRow, ("queue",)),
    "actions": Table(ActionRow, ()),
}

GONE: Final = """{table}_gone as (
    delete from {{schema}}.{table} where ctid = any (array(
        select old.at_ctid
        from json_populate_recordset(null::{{schema}}.{table}, {{{table}_gone}}::json) as given
        cross join lateral (
            select {table}.ctid as at_ctid from {{schema}}.{table} where {matches} for update
        ) as old
    ))
    returning 1
)"""
COME: Final = """{table}_come as (
    insert into {{schema}}.{table} ({columns})
    select {columns} from json_populate_recordset(null::{{schema}}.{table}, {{{table}_come}}::json)
    {if_there}
    returning {returned}
)"""
BELONGINGS: Final = """{table}_forgotten as (
    delete from {{schema}}.{table} where no = any ({{forgotten}}::int8[])
)"""
FINISHED_CUT: Final = """forgotten as materialized (
    select finished_at, array_agg(no) as nos from {schema}.executions
    where no = any ({forgotten}::int8[]) and slot = 0 group by finished_at
), batch as materialized (
    select batch.at_ctid, array(select no from unnest(batch.nos) as job (no) where no <> all (forgotten.nos)) as nos
    from forgotten cross join lateral (
        select finished.ctid as at_ctid, finished.nos from {schema}.finished
        where finished.at = forgotten.finished_at and finished.nos && forgotten.nos
        offset 0
    ) as batch
), batches_used_up as (
    delete from {schema}.finished where ctid = any (array(select at_ctid from batch where nos = '{{}}'))
), batches_cut as (
    update {schema}.finished set count = cardinality(batch.nos), nos = batch.nos
    from batch where finished.ctid = batch.at_ctid and batch.nos <> '{{}}'
)"""
FINISHED_COME: Final = """finished_come as (
    insert into {schema}.finished (at, count, nos)
    select finished_at, count(*), array_agg(no)
    from json_populate_recordset(null::{schema}.executions, {executions_come}::json) where slot = 0
    group by finished_at
)"""
ACTIONS: Final = f"""actions_given as materialized (
    select * from json_populate_recordset(null::{{schema}}.actions, {{actions_come}}::json)
), actions_joined as (
    delete from {{schema}}.actions where number in (
        select latest.number from actions_given as given cross join lateral (
            select number, at from (
                select number, at, verb, by_whom, reason from {{schema}}.actions
                order by number desc limit {JOINED_AMONG}
            ) as known
            where known.verb = given.verb and known.by_whom = given.by_whom and known.reason = given.reason
            order by number desc limit 1
        ) as latest
        where given.verb in ('cancel', 'redrive', 'purge') and given.at - latest.at <= {JOINED_WITHIN_US}
    )
    returning *
), actions_come as (
    insert into {{schema}}.actions (at, verb, by_whom, target, reason, count, first_at, others)
    select given.at, given.verb, given.by_whom, coalesce(joined.target, given.target), given.reason,
        given.count + coalesce(joined.count, 0), coalesce(joined.first_at, joined.at, given.first_at),
        case when joined is null then given.others
            else (joined.others || given.target || given.others)[:{TARGETS_KEPT - 1}] end
    from actions_given as given left join actions_joined as joined using (verb, by_whom, reason)
    returning number
), actions_trimmed as (
    delete from {{schema}}.actions where number <= (
        select number from (
            select number from {{schema}}.actions where number not in (select number from actions_joined)
            union all select number from actions_come
        ) as known
        order by number desc offset {ACTIONS_KEPT} limit 1
    )
)"""
"""O8: as `record_job` has it, without a right to update: an action that another joins is written again."""
CHECK: Final = """case when {counts} then 0
        else {{schema}}.fail('40001', 'a row had changed before it was locked') end as failed"""
NOTIFY: Final = "(select count(pg_notify(channel, no::text)) from {schema}.waiters where no = any ({ended}::int8[]))"
ANNOUNCE: Final = "pg_notify({channel}::text, {announced}::text)"
LOWER: Final = """(
        select {schema}.lower_watermarks(array_agg(queue), array_agg(rank::int8), array_agg(available_at))
        from ready_come
    )"""

_encode = msgspec.json.Encoder().encode


def saving(schema: str, change: Change, ended: list[int], announcement: tuple[str, str] | None) -> list[Execute]:
    """The statement with its parameters; none if there is nothing to write.

    `ended`: jobs that somebody may wait for (O9). `announcement`: a channel, and what is sent on it (O10).
    """
    rows = [(f"{table}_gone", some) for table, some in change.gone.items()]
    rows += [(f"{table}_come", some) for table, some in change.come.items()]
    if not rows and not ended and announcement is None:
        return []
    checked = tuple(name for name, _ in rows)
    finishes = any(isinstance(row, ExecutionRow) and row.slot == 0 for row in change.come.get("executions", ()))
    made = _statement(schema, checked, tuple(change.belongings), finishes, bool(ended), announcement is not None)
    given: dict[str, Any] = {name: _encode(some).decode() for name, some in rows}
    given |= {"forgotten": change.forgotten, "ended": ended}
    given["channel"], given["announced"] = announcement or (None, None)
    return [Execute(made, given)]


def save_actions(schema: str, state: State) -> Steps[None]:
    """Save what a decision on something else than jobs changed, in the transaction that is open."""
    rows: list[Row] = [action_row(one) for one in state.actions]
    if rows:
        yield from send(*saving(schema, Change({}, {"actions": rows}, [], []), [], None))


@cache
def _statement(
    schema: str, checked: tuple[str, ...], belongings: tuple[str, ...], finishes: bool, notifies: bool, announces: bool
) -> Statement:
    parts = [_part(*name.rsplit("_", 1)) for name in checked]
    parts += [FINISHED_CUT if table == "finished" else BELONGINGS.format(table=table) for table in belongings]
    counts = [f"(select count(*) from {name}) = json_array_length({{{name}}}::json)" for name in checked]
    last = [CHECK.format(counts=" and ".join(counts))] if counts else []
    if finishes:
        parts.append(FINISHED_COME)
    if "ready_come" in checked:
        last.append(LOWER)
    if notifies:
        last.append(NOTIFY)
    if announces:
        last.append(ANNOUNCE)
    text = f"select {', '.join(last)}"
    return statement(f"with {', '.join(parts)}\n{text}" if parts else text, schema)


def _part(table: str, kind: str) -> str:
    row, key, if_there = TABLES[table]
    if table == "actions":
        return ACTIONS
    if kind == "gone":
        matches = " and ".join(f"{table}.{name} = given.{name}" for name in key)
        return GONE.format(table=table, matches=matches)
    columns, returned = ", ".join(row.__struct_fields__), ", ".join(key)
    return COME.format(table=table, columns=columns, if_there=if_there, returned=returned)
