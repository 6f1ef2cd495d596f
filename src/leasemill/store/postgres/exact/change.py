"""A small kernel state as rows of the tables, and what a decision changed in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from leasemill.kernel.model import Execution, ExecutionStatus, Job, JobState, Refusal
from leasemill.kernel.state import LaneKey, State
from leasemill.store.postgres.exact.groups import group_row
from leasemill.store.postgres.rows.jobs import (
    execution_row,
    job_row,
    kept_row,
    lease_row,
    mark_row,
    ready_row,
    refusal_row,
    waiting_row,
)
from leasemill.store.postgres.rows.tables import (
    CancellationRow,
    GroupRow,
    KeptRow,
    LaneRow,
    LeaseRow,
    MarkRow,
    ParkedRow,
    QueueRow,
    QueueUse,
    ReadyRow,
    Row,
    TallyRow,
    WaitingRow,
    action_row,
)
from leasemill.store.postgres.rows.values import policy_numbers, ranges_text
from leasemill.store.postgres.steps import RetryTransaction


class TableRows(NamedTuple):
    """A small state as rows by their keys. Executions and refusals are only ever added."""

    jobs: dict[int, Job]
    ready: dict[int, ReadyRow]
    parked: dict[int, ParkedRow]
    """The ready jobs that wait for a place or a rate: they are in this table instead."""
    waiting: dict[int, WaitingRow]
    leases: dict[int, LeaseRow]
    kept: dict[int, KeptRow]
    marks: dict[int, MarkRow]
    cancellations: dict[int, CancellationRow]
    executions: dict[tuple[int, int], tuple[Job, Execution]]
    refusals: dict[tuple[int, str, str], Refusal]
    lanes: dict[LaneKey, LaneRow]
    queues: dict[str, QueueRow]
    groups: dict[str, GroupRow]
    succeeded: Counter[str]


class Locked(Struct, gc=False):
    """The rows that lock.sql has locked."""

    lanes: list[tuple[str, str]] | None
    nos: list[int] | None
    queues: int
    groups: list[str]


def table_rows(
    state: State,
    numbers: Mapping[str, int],
    turns: Mapping[str, int],
    joined: Mapping[str, int],
    parked: Mapping[int, ParkedRow],
) -> TableRows:
    """`parked`: the claimable jobs that are parked; those that stand where they stood stay so."""
    made = TableRows({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, Counter())
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
        use = None if one.mode is None else QueueUse(one.mode)
        policy = None if one.policy is None else policy_numbers(one.policy)
        made.queues[name] = QueueRow(name, one.is_paused, use, policy)
    for group_id, group in state.groups.items():
        made.groups[group_id] = group_row(group, joined[group_id])
    for no, row in parked.items():
        if _is_there(row, made.ready.get(no)):
            made.parked[no] = row
            del made.ready[no]
    return made


def as_stored(rows: TableRows, lanes: Sequence[LaneRow] | None, queues: Sequence[QueueRow] | None) -> TableRows:
    """With the lanes and queues as they are in their tables: also a lane that was just made, and no new queue."""
    return rows._replace(
        lanes={(row.queue, row.lane): row for row in lanes or ()},
        queues={row.name: _as_known(row) for row in queues or ()},
    )


def _as_known(row: QueueRow) -> QueueRow:
    """The kernel knows queues that are claimed from, with rules or without."""
    return replace(row, mode=QueueUse.CLAIM) if row.mode is QueueUse.RULED else row


def is_behind(state: State, job: Job) -> bool:
    """Return True if a job waits behind its lane's head."""
    spec = job.spec
    return job.state is JobState.READY and spec.lane is not None and state.lanes[spec.queue, spec.lane].head is not job


def _add_job(made: TableRows, state: State, job: Job, no: int, turn: int | None) -> None:
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
            made.executions[no, _slot_of(job, execution)] = job, execution
    if job.redriven_attempt is not None:
        made.marks[no] = mark_row(job, no)
    if (cancelled := job.cancellation) is not None:
        made.cancellations[no] = CancellationRow(no, cancelled.at, cancelled.by, cancelled.reason)
    for refusal in job.refusals:
        made.refusals[no, refusal.token, refusal.verb] = refusal


def _slot_of(job: Job, execution: Execution) -> int:
    """X4: the execution that committed has the same slot whatever its attempt, so there is one."""
    if execution.status is not ExecutionStatus.DONE:
        return execution.attempt
    return 0 if job.spec.offset is None else -1


class Change(NamedTuple):
    """Rows to take out and rows to put in, by their tables; those without any are left out."""

    gone: dict[str, list[Row]]
    come: dict[str, list[Row]]
    forgotten: list[int]
    """The numbers of jobs of which nothing is kept."""
    belongings: list[str]
    """The tables with further rows of theirs."""

    def written(self, table: str) -> list[Any]:
        return self.gone.get(table, []) + self.come.get(table, [])


def difference(before: TableRows, after: TableRows, state: State) -> Change:
    """`state`: that of `after`."""
    counted = after.succeeded.copy()
    counted.subtract(before.succeeded)
    forgotten = before.jobs.keys() - after.jobs.keys()
    gone: dict[str, list[Row]] = {
        "jobs": [job_row(before.jobs[no], no) for no in sorted(forgotten)],
        "ready": [row for no, row in before.ready.items() if not _is_there(row, after.ready.get(no))],
        "parked": _left(before.parked, after.parked),
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
            execution_row(*ended, *key) for key, ended in after.executions.items() if key not in before.executions
        ],
        "refusals": [
            refusal_row(refusal, key[0]) for key, refusal in after.refusals.items() if key not in before.refusals
        ],
        "lanes": _changed(before.lanes, after.lanes),
        "groups": _changed(before.groups, after.groups),
        "tallies": [TallyRow(queue, count) for queue, count in counted.items() if count],
        "actions": [action_row(one) for one in state.actions],
    }
    return Change(_filled(gone), _filled(come), sorted(forgotten), _belongings(before, forgotten))


def check_locked(change: Change, before: TableRows, locked: Locked) -> None:
    """Rows that came to be after the locks were taken may be read; changed they must not be."""
    nos, lanes = set(locked.nos or ()), set(locked.lanes or ())
    if not lanes.issuperset((row.queue, row.lane) for row in change.written("lanes")):
        raise RetryTransaction("a concurrent call created a lane")
    if not set(locked.groups).issuperset(row.id for row in change.written("groups")):
        raise RetryTransaction("a concurrent call changed a group")
    for table, known in (("leases", before.leases), ("kept", before.kept)):
        if any(row.no in known and row.no not in nos for row in change.written(table)):
            raise RetryTransaction("a concurrent call changed a lease")


def _belongings(before: TableRows, forgotten: Set[int]) -> list[str]:
    if not forgotten:
        return []
    owners = {
        "executions": {no for no, _ in before.executions},
        "refusals": {no for no, *_ in before.refusals},
        "marks": before.marks.keys(),
        "cancellations": before.cancellations.keys(),
        "finished": {no for no, slot in before.executions if slot == 0},
    }
    return [table for table, nos in owners.items() if nos & forgotten]


def _is_there(row: ReadyRow | ParkedRow, now: ReadyRow | None) -> bool:
    return now is not None and (row.rank, row.available_at, row.seq) == (now.rank, now.available_at, now.seq)


def _left(before: Mapping[Any, Row], after: Mapping[Any, Row]) -> list[Row]:
    return [row for key, row in before.items() if key not in after]


def _changed(before: Mapping[Any, Row], after: Mapping[Any, Row]) -> list[Row]:
    return [row for key, row in after.items() if before.get(key) != row]


def _filled(tables: dict[str, list[Row]]) -> dict[str, list[Row]]:
    return {table: rows for table, rows in tables.items() if rows}
