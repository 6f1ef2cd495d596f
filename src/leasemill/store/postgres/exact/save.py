"""What a decision changed, table by table, and the one statement that writes it.

The statement has a part for each table concerned and no other: there are few combinations, and each is prepared once.
Every part must find or write as many rows as it was given, else the statement fails and with it the transaction: a row
had changed before it was locked, and the whole is decided again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple, cast

import msgspec

from leasemill.kernel.model import Execution, Job, JobState, Refusal
from leasemill.kernel.state import LaneKey, State
from leasemill.store.postgres.exact.rows import (
    execution_row,
    job_row,
    kept_row,
    lease_row,
    mark_row,
    policy_numbers,
    ranges_text,
    ready_row,
    refusal_row,
    slot_of,
    waiting_row,
)
from leasemill.store.postgres.exact.tables import (
    ActionRow,
    CancellationRow,
    ExecutionRow,
    JobRow,
    KeptRow,
    LaneRow,
    LeaseRow,
    MarkRow,
    QueueRow,
    ReadyRow,
    RefusalRow,
    Row,
    TallyRow,
    WaitingRow,
)
from leasemill.store.postgres.wire.statements import Statement, statement


class Image(NamedTuple):
    """A small state as rows by their keys. Executions and refusals are only ever added."""

    jobs: dict[int, Job]
    ready: dict[int, ReadyRow]
    waiting: dict[int, WaitingRow]
    leases: dict[int, LeaseRow]
    kept: dict[int, KeptRow]
    marks: dict[int, MarkRow]
    cancellations: dict[int, CancellationRow]
    executions: dict[tuple[int, int], tuple[Job, Execution]]
    refusals: dict[tuple[int, str, str], Refusal]
    lanes: dict[LaneKey, LaneRow]
    queues: dict[str, QueueRow]
    succeeded: Counter[str]


def image(state: State, numbers: Mapping[str, int], turns: Mapping[str, int]) -> Image:
    made = Image({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, Counter())
    for job_id, job in state.jobs.items():
        _add_job(made, state, job, numbers[job_id], turns.get(job_id))
    for (queue, key), lane in state.lanes.items():
        head = lane.head
        made.lanes[queue, key] = LaneRow(
            queue=queue,
            lane=key,
            is_blocked=head is not None and head.blocks_lane,
            head=None if head is None else numbers[head.spec.id],
            head_seq=None if head is None else head.seq,
            finished=ranges_text(lane.finished),
            failed=ranges_text(lane.failed),
            last_finished=None if lane.last_finished is None else numbers[lane.last_finished],
        )
    for name, one in state.queues.items():
        made.queues[name] = QueueRow(name, one.is_paused, one.mode, policy_numbers(one.policy))
    return made


def is_behind(state: State, job: Job) -> bool:
    """Whether a job waits behind its lane's head."""
    spec = job.spec
    return job.state is JobState.READY and spec.lane is not None and state.lanes[spec.queue, spec.lane].head is not job


def _add_job(made: Image, state: State, job: Job, no: int, turn: int | None) -> None:
    made.jobs[no] = job
    match job.state:
        case JobState.READY if is_behind(state, job):
            made.waiting[no] = waiting_row(job, no, turn or 0)
        case JobState.READY:
            made.ready[no] = ready_row(job, no)
        case JobState.LEASED:
            made.leases[no] = lease_row(job, no)
        case JobState.SUCCEEDED:
            made.succeeded[job.spec.queue] += 1
        case JobState.FAILED | JobState.DEAD | JobState.CANCELLED:
            made.kept[no] = kept_row(job, no)
    for execution in job.executions:
        if execution.finished_at is not None:
            made.executions[no, slot_of(job, execution)] = job, execution
    if job.redriven_attempt is not None:
        made.marks[no] = mark_row(job, no)
    if (cancelled := job.cancellation) is not None:
        made.cancellations[no] = CancellationRow(no, cancelled.at, cancelled.by, cancelled.reason)
    for refusal in job.refusals:
        made.refusals[no, refusal.token, refusal.verb] = refusal


class Change(NamedTuple):
    """Rows to take out and rows to put in, by their tables; those without any are left out."""

    gone: dict[str, list[Row]]
    come: dict[str, list[Row]]

    @property
    def forgotten(self) -> list[JobRow]:
        return cast(list[JobRow], self.gone.get("jobs", []))

    def written(self, table: str) -> list[Any]:
        return self.gone.get(table, []) + self.come.get(table, [])


def difference(before: Image, after: Image, state: State) -> Change:
    """`state`: that of `after`."""
    counted = after.succeeded.copy()
    counted.subtract(before.succeeded)
    gone: dict[str, list[Row]] = {
        "jobs": [job_row(job, no) for no, job in before.jobs.items() if no not in after.jobs],
        "ready": [row for no, row in before.ready.items() if not _is_there(row, after.ready.get(no))],
        "waiting": _left(before.waiting, after.waiting),
        "leases": _left(before.leases, after.leases),
        "kept": _left(before.kept, after.kept),
        "lanes": _left(before.lanes, after.lanes),
    }
    come: dict[str, list[Row]] = {
        "queues": _changed(before.queues, after.queues),
        "jobs": [job_row(job, no) for no, job in after.jobs.items() if no not in before.jobs],
        "ready": _changed(before.ready, after.ready),
        "waiting": _changed(before.waiting, after.waiting),
        "leases": _changed(before.leases, after.leases),
        "kept": _changed(before.kept, after.kept),
        "marks": _changed(before.marks, after.marks),
        "cancellations": _changed(before.cancellations, after.cancellations),
        "executions": [
            execution_row(*ended, key[0]) for key, ended in after.executions.items() if key not in before.executions
        ],
        "refusals": [
            refusal_row(refusal, key[0]) for key, refusal in after.refusals.items() if key not in before.refusals
        ],
        "lanes": _changed(before.lanes, after.lanes),
        "tallies": [TallyRow(queue, count) for queue, count in counted.items() if count],
        "actions": [ActionRow(one.at, one.verb, one.by, one.target, one.reason) for one in state.actions],
    }
    return Change(_filled(gone), _filled(come))


def _is_there(row: ReadyRow, now: ReadyRow | None) -> bool:
    return now is not None and (row.rank, row.available_at, row.seq) == (now.rank, now.available_at, now.seq)


def _left(before: Mapping[Any, Row], after: Mapping[Any, Row]) -> list[Row]:
    return [row for key, row in before.items() if key not in after]


def _changed(before: Mapping[Any, Row], after: Mapping[Any, Row]) -> list[Row]:
    return [row for key, row in after.items() if before.get(key) != row]


def _filled(tables: dict[str, list[Row]]) -> dict[str, list[Row]]:
    return {table: rows for table, rows in tables.items() if rows}


# The statement -----------------------------------------------------------------------------------------------------


class Table(NamedTuple):
    row: type[Row]
    key: tuple[str, ...]
    if_there: str = ""
    """What becomes of a row whose key is there; by default the statement fails."""


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
        "where queues.mode is null or excluded.mode is null or queues.mode = excluded.mode",  # I7: the mode stays
    ),
    "jobs": Table(JobRow, ("no",)),
    "ready": _replaced(ReadyRow, ("queue", "rank", "available_at", "seq")),
    "waiting": _replaced(WaitingRow, ("queue", "lane", "turn")),
    "leases": _replaced(LeaseRow, ("no",)),
    "kept": _replaced(KeptRow, ("no",)),
    "marks": _replaced(MarkRow, ("no",)),
    "cancellations": _replaced(CancellationRow, ("no",)),
    "executions": Table(ExecutionRow, ("no", "slot")),
    "refusals": Table(RefusalRow, ("no", "token", "verb")),
    "lanes": _replaced(LaneRow, ("queue", "lane")),
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
FOLLOWS: Final = {
    "jobs_gone": """forgotten as materialized (
    select no from json_populate_recordset(null::{schema}.jobs, {jobs_gone}::json)
), executions_forgotten as (
    delete from {schema}.executions where no = any (array(select no from forgotten)) returning no, slot, finished_at
), succeeded_forgotten as materialized (
    select finished_at, array_agg(no) as nos from executions_forgotten where slot = 0 group by finished_at
), batch as materialized (
    select batch.at_ctid, array(select no from unnest(batch.nos) as job (no) where no <> all (gone.nos)) as nos
    from succeeded_forgotten as gone cross join lateral (
        select finished.ctid as at_ctid, finished.nos from {schema}.finished
        where finished.at = gone.finished_at and finished.nos && gone.nos
        offset 0
    ) as batch
), batches_used_up as (
    delete from {schema}.finished where ctid = any (array(select at_ctid from batch where nos = '{{}}'))
), batches_cut as (
    update {schema}.finished set count = cardinality(batch.nos), nos = batch.nos
    from batch where finished.ctid = batch.at_ctid and batch.nos <> '{{}}'
), refusals_forgotten as (
    delete from {schema}.refusals where no = any (array(select no from forgotten))
), marks_forgotten as (
    delete from {schema}.marks where no = any (array(select no from forgotten))
), cancellations_forgotten as (
    delete from {schema}.cancellations where no = any (array(select no from forgotten))
)""",
    "executions_come": """finished_come as (
    insert into {schema}.finished (at, count, nos)
    select finished_at, count(*), array_agg(no)
    from json_populate_recordset(null::{schema}.executions, {executions_come}::json) where slot = 0
    group by finished_at
)""",
    "actions_come": """actions_trimmed as (
    delete from {schema}.actions where number <= (
        select number from (select number from {schema}.actions union all select number from actions_come) as known
        order by number desc offset 1000 limit 1
    )
)""",
}
"""What goes with a part: all that was kept of a forgotten job (O5, N10), what retention goes by, the limit of O8."""
LOWERED: Final = """,
    (
        select {schema}.lower_watermarks(array_agg(queue), array_agg(rank::int8), array_agg(available_at))
        from ready_come
    ) as lowered"""
LAST: Final = """select
    case when {counts} then 0 else {{schema}}.fail('40001', 'a row had changed before it was locked') end as failed,
    (select count(pg_notify(channel, no::text)) from {{schema}}.waiters where no = any ({{ended}}::int8[])) as notified,
    case when {{channel}}::text is not null then pg_notify({{channel}}::text, {{cancelled}}::text) end as announced"""


@cache
def _statement(schema: str, parts: tuple[tuple[str, str], ...]) -> Statement:
    made: list[str] = []
    counts = ["true"]
    for table, kind in parts:
        made.append(_part(table, kind))
        name = f"{table}_{kind}"
        if name in FOLLOWS:
            made.append(FOLLOWS[name])
        counts.append(f"(select count(*) from {name}) = json_array_length({{{name}}}::json)")
    last = LAST.format(counts=" and ".join(counts)) + (LOWERED if ("ready", "come") in parts else "")
    return statement(f"with {', '.join(made)}\n{last}" if made else last, schema)


def _part(table: str, kind: str) -> str:
    row, key, if_there = TABLES[table]
    columns = row.__struct_fields__
    if kind == "gone":
        matches = " and ".join(f"{table}.{name} = given.{name}" for name in key)
        return GONE.format(table=table, matches=matches)
    returned = ", ".join(key) or "number"
    return COME.format(table=table, columns=", ".join(columns), if_there=if_there, returned=returned)


_encode = msgspec.json.Encoder().encode


def saving(schema: str, change: Change, ended: Any, channel: str | None, cancelled: str) -> tuple[bytes, list[Any]]:
    """The statement that writes a change, and its parameters. `ended`: jobs that somebody may wait for (O9)."""
    parts = [*((table, "gone") for table in change.gone), *((table, "come") for table in change.come)]
    given: dict[str, Any] = {"ended": ended, "channel": channel, "cancelled": cancelled}
    given |= {f"{table}_gone": _encode(rows).decode() for table, rows in change.gone.items()}
    given |= {f"{table}_come": _encode(rows).decode() for table, rows in change.come.items()}
    made = _statement(schema, tuple(parts))
    return made.text, made.values(given)
