"""A small kernel state as rows of the tables, and the difference between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from leasemill.kernel.model import Action, Execution, ExecutionStatus, Job, JobState, Refusal, Verb
from leasemill.kernel.state import LaneKey, State
from leasemill.store.postgres.rows import policy_text, ranges_text, terms_text
from leasemill.store.postgres.wire.arrays import int8s, texts

LIVE_STATES = (JobState.READY, JobState.LEASED)


class JobRow(Struct, frozen=True):
    no: int
    id: str
    queue: str
    kind: str
    payload: str
    lane: str | None
    priority: int
    run_at: int | None
    delay_us: int | None
    policy: str | None
    lane_offset: int | None
    created_at: int


class ReadyRow(Struct, frozen=True):
    queue: str
    rank: int
    available_at: int
    seq: int
    no: int
    attempt: int
    retries: int
    expirations: int


class WaitingRow(Struct, frozen=True):
    queue: str
    lane: str
    turn: int
    no: int
    seq: int
    rank: int
    available_at: int
    attempt: int
    retries: int
    expirations: int


class LeaseRow(Struct, frozen=True):
    no: int
    queue: str
    lane: str | None
    lane_offset: int | None
    rank: int
    seq: int
    available_at: int
    attempt: int
    retries: int
    expirations: int
    fence: int
    token: str
    worker: str
    request_id: str | None
    leased_at: int
    updated_at: int
    expires_at: int
    terms: str | None
    started_at: int | None
    committed_at: int | None
    result: str | None
    error: str | None
    kept_report_id: str | None
    kept_retries: int | None


class ExecutionRow(Struct, frozen=True):
    no: int
    slot: int
    attempt: int
    available_at: int
    retries: int
    expirations: int
    fence: int
    token: str
    worker: str
    request_id: str | None
    leased_at: int
    expires_at: int
    terms: str | None
    started_at: int | None
    committed_at: int | None
    finished_at: int
    ended_by: str
    committed_by: str | None
    reason: str | None
    is_final: bool
    retry_at: int | None
    result: str | None
    error: str | None
    kept_report_id: str | None
    kept_retries: int | None


class KeptRow(Struct, frozen=True):
    no: int
    seq: int
    state: str
    available_at: int
    updated_at: int
    retries: int
    expirations: int
    blocks_lane: bool


class MarkRow(Struct, frozen=True):
    no: int
    seq: int
    redriven_attempt: int
    redriven_at: int


class CancellationRow(Struct, frozen=True):
    no: int
    at: int
    by_whom: str
    reason: str


class LaneRow(Struct, frozen=True):
    queue: str
    lane: str
    head: int | None
    head_seq: int | None
    is_blocked: bool
    finished: str | None
    failed: str | None
    last_finished: int | None


class RefusalRow(Struct, frozen=True):
    no: int
    token: str
    verb: str
    worker: str | None
    attempt: int | None
    current_attempt: int
    reason: str
    at: int


class QueueRow(Struct, frozen=True):
    name: str
    mode: str | None
    is_paused: bool
    policy: str | None


class TallyRow(Struct, frozen=True):
    queue: str
    succeeded: int


class Image(Struct):
    """Rows by their keys. Executions and refusals are only ever added."""

    jobs: dict[int, JobRow]
    ready: dict[int, ReadyRow]
    waiting: dict[int, WaitingRow]
    leases: dict[int, LeaseRow]
    executions: dict[tuple[int, int], ExecutionRow]
    kept: dict[int, KeptRow]
    marks: dict[int, MarkRow]
    cancellations: dict[int, CancellationRow]
    lanes: dict[LaneKey, LaneRow]
    refusals: dict[tuple[int, str, str], RefusalRow]
    queues: dict[str, QueueRow]
    succeeded: dict[str, int]


class Change(Struct):
    """What to take out, table by table, and then what to put in."""

    gone: dict[str, list[Any]]
    come: dict[str, list[Any]]


def difference(before: Image, after: Image) -> Change:
    forgotten = [row for no, row in before.jobs.items() if no not in after.jobs]
    gone: dict[str, list[Any]] = {"jobs": forgotten}
    come: dict[str, list[Any]] = {"jobs": [row for no, row in after.jobs.items() if no not in before.jobs]}
    for table in ("ready", "waiting", "leases", "kept"):
        was, now = getattr(before, table), getattr(after, table)
        gone[table] = [row for key, row in was.items() if now.get(key) != row]
        come[table] = [row for key, row in now.items() if was.get(key) != row]
    for table in ("executions", "refusals", "marks", "cancellations", "lanes"):
        was, now = getattr(before, table), getattr(after, table)
        come[table] = [
            row for key, row in now.items() if (was.get(key) != row if table in CHANGING else key not in was)
        ]
    counts = {queue: after.succeeded.get(queue, 0) - before.succeeded.get(queue, 0) for queue in after.succeeded}
    counts |= {queue: -count for queue, count in before.succeeded.items() if queue not in after.succeeded}
    come["tallies"] = [TallyRow(queue, count) for queue, count in counts.items() if count]
    return Change(gone, come)


CHANGING = frozenset({"marks", "cancellations", "lanes"})


def image(state: State, numbers: dict[str, int], turns: dict[str, int]) -> Image:
    made = Image({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
    for job_id, job in state.jobs.items():
        _add_job(made, state, job, numbers[job_id], turns.get(job_id))
    for (queue, key), lane in state.lanes.items():
        head = lane.head
        made.lanes[queue, key] = LaneRow(
            queue,
            key,
            None if head is None else numbers[head.spec.id],
            None if head is None else head.seq,
            head is not None and head.blocks_lane,
            ranges_text(lane.finished),
            ranges_text(lane.failed),
            None if lane.last_finished is None else numbers[lane.last_finished],
        )
    for name, one in state.queues.items():
        made.queues[name] = QueueRow(name, one.mode, one.is_paused, policy_text(one.policy))
    return made


def is_behind(state: State, job: Job) -> bool:
    """Whether a job waits behind its lane's head."""
    spec = job.spec
    return job.state is JobState.READY and spec.lane is not None and state.lanes[spec.queue, spec.lane].head is not job


def _add_job(made: Image, state: State, job: Job, no: int, turn: int | None) -> None:
    spec = job.spec
    rank = 9 - spec.priority
    made.jobs[no] = JobRow(
        no,
        spec.id,
        spec.queue,
        spec.kind,
        spec.payload.decode(),
        spec.lane,
        spec.priority,
        spec.run_at,
        spec.delay_us or None,
        policy_text(spec.policy),
        spec.offset,
        job.created_at,
    )
    standing = (job.available_at, job.attempt, job.retries, job.expirations)
    match job.state:
        case JobState.READY if is_behind(state, job):
            assert spec.lane is not None
            made.waiting[no] = WaitingRow(spec.queue, spec.lane, turn or 0, no, job.seq, rank, *standing)
        case JobState.READY:
            made.ready[no] = ReadyRow(spec.queue, rank, job.available_at, job.seq, no, *standing[1:])
        case JobState.LEASED:
            made.leases[no] = _lease_row(job, no)
        case JobState.SUCCEEDED:
            made.succeeded[spec.queue] = made.succeeded.get(spec.queue, 0) + 1
        case JobState.FAILED | JobState.DEAD | JobState.CANCELLED:
            made.kept[no] = KeptRow(
                no,
                job.seq,
                job.state,
                job.available_at,
                job.updated_at,
                job.retries,
                job.expirations,
                job.blocks_lane,
            )
    for execution in job.executions:
        if execution.finished_at is not None:
            row = _execution_row(job, execution, no)
            made.executions[no, row.slot] = row
    if job.redriven_attempt is not None:
        made.marks[no] = MarkRow(no, job.seq, job.redriven_attempt, _redriven_at(job))
    if (cancellation := job.cancellation) is not None:
        made.cancellations[no] = CancellationRow(no, cancellation.at, cancellation.by, cancellation.reason)
    for refusal in job.refusals:
        made.refusals[no, refusal.token, refusal.verb] = _refusal_row(refusal, no)


def _redriven_at(job: Job) -> int:
    """Only told while it counts: until the job is claimed again its last change is the redrive."""
    return job.available_at if job.redriven_attempt == job.attempt and job.state is JobState.READY else 0


def _lease_row(job: Job, no: int) -> LeaseRow:
    spec, execution = job.spec, job.executions[-1]
    kept = execution.kept_failure
    return LeaseRow(
        no,
        spec.queue,
        spec.lane,
        spec.offset,
        9 - spec.priority,
        job.seq,
        job.available_at,
        job.attempt,
        job.retries,
        job.expirations,
        execution.fence,
        execution.token,
        execution.worker,
        execution.request_id,
        execution.leased_at,
        job.updated_at,
        execution.expires_at,
        terms_text(execution.terms),
        execution.started_at,
        execution.committed_at,
        None if job.result is None else job.result.decode(),
        execution.error,
        None if kept is None else kept.report_id,
        None if kept is None else kept.retries,
    )


def _execution_row(job: Job, execution: Execution, no: int) -> ExecutionRow:
    assert execution.finished_at is not None and execution.ended_by is not None
    is_done = execution.status is ExecutionStatus.DONE
    kept = execution.kept_failure
    slot = execution.attempt if not is_done else 0 if job.spec.offset is None else -1
    return ExecutionRow(
        no,
        slot,
        execution.attempt,
        job.available_at,
        job.retries,
        job.expirations,
        execution.fence,
        execution.token,
        execution.worker,
        execution.request_id,
        execution.leased_at,
        execution.expires_at,
        terms_text(execution.terms),
        execution.started_at,
        execution.committed_at,
        execution.finished_at,
        execution.ended_by,
        execution.committed_by,
        execution.reason,
        execution.is_final,
        execution.retry_at,
        job.result.decode() if is_done and job.result is not None else None,
        execution.error,
        None if kept is None else kept.report_id,
        None if kept is None else kept.retries,
    )


def _refusal_row(refusal: Refusal, no: int) -> RefusalRow:
    return RefusalRow(
        no,
        refusal.token,
        refusal.verb,
        refusal.worker,
        refusal.attempt,
        refusal.current_attempt,
        refusal.reason,
        refusal.at,
    )


def columns(rows: Sequence[Any]) -> dict[str, Any]:
    """The rows as one array for each column."""
    return {name: _array([getattr(row, name) for row in rows], kind) for name, kind in _kinds(type(rows[0])).items()}


def action_columns(actions: Iterable[Action]) -> dict[str, Any]:
    rows = list(actions)
    return {
        "at": int8s([row.at for row in rows]),
        "verb": texts([Verb(row.verb).value for row in rows]),
        "by_whom": texts([row.by for row in rows]),
        "target": texts([row.target for row in rows]),
        "reason": texts([row.reason for row in rows]),
    }


def _kinds(table: type) -> dict[str, str]:
    return {name: str(kind) for name, kind in table.__annotations__.items()}


def _array(values: list[Any], kind: str) -> Any:
    if kind.startswith("int"):
        return int8s(values)
    if kind.startswith("bool"):
        return texts(["true" if value else "false" for value in values])
    return texts([None if value is None else str(value) for value in values])
