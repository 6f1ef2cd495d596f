"""What the straight path leaves over is decided by the kernel itself, on the rows it concerns, under their locks.

A transaction locks the lanes, then the jobs, in order; loads them into a small `State`; lets `kernel.machine.run`
decide and apply; and writes the difference. So a rule that is not in SQL is not written twice either. What must never
happen here: a decision of its own, or a write to a row that was not locked or checked (`Moved`: begin anew).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from leasemill.errors import QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.ending import ended_jobs
from leasemill.kernel.events import AnyEvent, ExecutionCommitted
from leasemill.kernel.machine import run
from leasemill.kernel.model import Job, JobState, QueueMode
from leasemill.kernel.state import Lane, LaneKey, State, finished_at, hold, make_ready
from leasemill.kernel.verbs.cancel import cancels_a_run
from leasemill.store.postgres import admission, retention
from leasemill.store.postgres.database import RUN_CANCELLED, Database
from leasemill.store.postgres.exact import image
from leasemill.store.postgres.rows import job_of, policy_of, ranges_of
from leasemill.store.postgres.wire.arrays import int8, int8s, texts
from leasemill.store.postgres.wire.connections import Connection, Moved

AnswerT = TypeVar("AnswerT")
BASE: Final = 2**62
ADMISSION_TRIES: Final = 20


class Loaded(Struct):
    """A part of the store as a kernel state, and the numbers of its rows."""

    state: State
    numbers: dict[str, int]
    turns: dict[str, int]
    lanes: set[LaneKey]
    now: int


def decide(
    database: Database,
    connection: Connection,
    command: c.Command[AnswerT],
    *,
    ids: Iterable[str] = (),
    queues: Iterable[str] = (),
    lanes: Iterable[LaneKey] = (),
    makes_lanes: bool = False,
    find: tuple[str, Mapping[str, Any]] | None = None,
) -> AnswerT:
    """Carry out a command that concerns these jobs, queues and lanes, and no others.

    `find`: the statement that locks the jobs and names them, in the same transaction.
    """
    with connection.transaction():
        if find is not None:
            ids = [job_id for (job_id,) in database.all(connection, *find)]
        loaded = _load(database, connection, list(dict.fromkeys(ids)), set(queues), set(lanes), makes_lanes)
        before = image.image(loaded.state, loaded.numbers, loaded.turns)
        events, answer = run(loaded.state, command, loaded.now)
        if any(isinstance(event, ExecutionCommitted) for event in events):
            raise Moved("the lease is held after all: commit on the straight path")
        fences = _number(database, connection, loaded)
        after = image.image(loaded.state, loaded.numbers, loaded.turns)
        _save(database, connection, loaded, before, after)
        _notify(database, connection, loaded, events)
    database.expiries.notify(database.expiries.found(loaded.state, events))
    database.positions.lower((row.queue, row.rank, row.available_at, row.seq) for row in after.ready.values())
    return _with_fences(answer, fences)


# Load --------------------------------------------------------------------------------------------------------------


def _load(
    database: Database,
    connection: Connection,
    ids: list[str],
    queues: set[str],
    lanes: set[LaneKey],
    makes_lanes: bool,
) -> Loaded:
    members = _members(database, connection, ids) if ids else []
    depths = Counter((queue, lane) for _, _, queue, lane, _ in members if lane is not None)
    keys = sorted(lanes | depths.keys())
    nos = {no for no, *_ in members}
    state, turns = State(), dict[str, int]()
    heads, lasts, line = [], [], []
    if keys:
        given: dict[str, Any] = {
            "queues": texts([queue for queue, _ in keys]),
            "lanes": texts([lane for _, lane in keys]),
        }
        if makes_lanes:
            database.do(connection, "make_lanes", given)
        locked = database.all(connection, "lock_lanes", given)
        if makes_lanes and len(locked) < len(keys):
            raise Moved("a lane was forgotten as it was to be used")
        heads = [(queue, lane, head) for queue, lane, head, *_ in locked if head is not None]
        lasts = [(queue, lane, last) for queue, lane, *_, last in locked if last is not None]
        given |= {"depths": int8s([depths[key] + 1 for key in keys]), "nos": int8s(sorted(nos))}
        line = database.all(connection, "line", given)
        for queue, lane, _, _, finished, failed, _ in locked:
            if finished is not None or failed is not None:
                kept = state.lanes[queue, lane] = Lane()
                kept.finished, kept.failed = ranges_of(finished), ranges_of(failed)
    nos |= {head for _, _, head in heads} | {last for _, _, last in lasts} | {no for *_, no in line}
    database.do(connection, "lock_jobs", {"nos": int8s(sorted(nos))})
    (now,) = database.one(connection, "clock", {})
    read = [job_of(row) for row in database.all(connection, "read", {"nos": int8s(sorted(nos)), "ids": texts([])})]
    jobs = dict(read)
    _load_queues(database, connection, state, queues | {job.spec.queue for job in jobs.values()} | {q for q, _ in keys})
    for queue, lane, head in heads:
        state.lanes.setdefault((queue, lane), Lane()).head = jobs.get(head)
    for queue, lane, last in lasts:
        state.lanes[queue, lane].last_finished = jobs[last].spec.id if last in jobs else None
    for queue, lane, turn, no in line:
        turns[jobs[no].spec.id] = turn
        waits = state.lanes[queue, lane]
        waits.waiting = waits.waiting or deque()
        waits.waiting.append(jobs[no].seq)
        waits.waiting_count += 1
    for job in sorted(jobs.values(), key=lambda job: job.seq):
        _place(state, job, is_waiting=job.spec.id in turns)
    state.seq = state.fence = BASE
    return Loaded(state, {job.spec.id: no for no, job in read}, turns, set(keys), now)


def _members(database: Database, connection: Connection, ids: list[str]) -> list[Any]:
    """The jobs' numbers and lanes; none of them waits for admission any more."""
    for _ in range(ADMISSION_TRIES):
        members = database.all(connection, "members", {"ids": texts(ids)})
        if not any(has_arrived for *_, has_arrived in members):
            return members
        admission.lock_admission(database, connection)
        admission.admit(database, connection, waits=True)
    raise Moved("jobs wait for their admission")


def _load_queues(database: Database, connection: Connection, state: State, names: set[str]) -> None:
    for name, mode, is_paused, policy in database.all(connection, "queues_read", {"names": texts(sorted(names))}):
        queue = state.queue(name)
        queue.mode = None if mode is None else QueueMode(mode)
        queue.is_paused = is_paused
        queue.policy = policy_of(policy)


def _place(state: State, job: Job, *, is_waiting: bool) -> None:
    """As `kernel.image` does, but for the lanes, whose order is that of admission."""
    state.jobs[job.spec.id] = job
    state.listing.add(job)
    state.queue(job.spec.queue).counts[job.state] += 1
    match job.state:
        case JobState.LEASED:
            hold(state, job.executions[-1])
        case JobState.FAILED | JobState.DEAD | JobState.CANCELLED:
            state.unsuccessful.add(job)
        case JobState.SUCCEEDED if job.spec.offset is None:
            state.finished.push(finished_at(job), job.seq, job)
        case JobState.READY if not is_waiting:
            make_ready(state, job, job.updated_at)
        case _:
            pass


# Save --------------------------------------------------------------------------------------------------------------


def _number(database: Database, connection: Connection, loaded: Loaded) -> dict[int, int]:
    """Real numbers for what the kernel counted up from BASE; answers with the fences."""
    state = loaded.state
    moved = sorted((job for job in state.jobs.values() if job.seq > BASE), key=lambda job: job.seq)
    granted = sorted(one.fence for job in state.jobs.values() for one in job.executions if one.fence > BASE)
    lined_up = [job for job in moved if image.is_behind(state, job) and job.spec.id not in loaded.turns]
    if not moved and not granted and not lined_up:
        return {}
    counts = {"seqs": int8(len(moved)), "fences": int8(len(granted)), "turns": int8(len(lined_up))}
    seqs, fences, turns = database.one(connection, "draw", counts)
    drawn = dict(zip(granted, sorted(fences), strict=True))
    for job, seq in zip(moved, sorted(seqs), strict=True):
        job.seq = seq
        loaded.numbers.setdefault(job.spec.id, seq)
    for job, turn in zip(lined_up, sorted(turns), strict=True):
        loaded.turns[job.spec.id] = turn
    for job in state.jobs.values():
        for execution in job.executions:
            execution.fence = drawn.get(execution.fence, execution.fence)
    return drawn


def _with_fences(answer: AnswerT, fences: dict[int, int]) -> AnswerT:
    if not fences or not isinstance(answer, list):
        return answer
    return [_with_fence(one, fences) for one in answer]  # type: ignore[return-value]


def _with_fence(outcome: Any, fences: dict[int, int]) -> Any:
    if not isinstance(outcome, c.Acquired | c.AlreadyAcquired):
        return outcome
    lease = outcome.lease
    return replace(outcome, lease=replace(lease, fence=fences.get(lease.fence, lease.fence)))


def _save(database: Database, connection: Connection, loaded: Loaded, before: image.Image, after: image.Image) -> None:
    change = image.difference(before, after)
    if any(job.lane_offset is None for job in change.gone["jobs"]):
        retention.lock_retention(database, connection)
    for table, rows in change.gone.items():
        if rows:
            (count,) = database.one(connection, f"drop_{table}", image.columns(rows))
            if table in {"jobs", "ready", "waiting"} and count != len(rows):
                raise Moved(f"a job left {table} before it was locked")
    for table, rows in change.come.items():
        if rows:
            database.do(connection, f"save_{table}", image.columns(rows))
    _save_lanes(database, connection, loaded, after)
    _save_queues(database, connection, before, after)
    if loaded.state.actions:
        database.do(connection, "save_actions", image.action_columns(loaded.state.actions))


def _save_lanes(database: Database, connection: Connection, loaded: Loaded, after: image.Image) -> None:
    idle = sorted(loaded.lanes - after.lanes.keys())
    if idle:
        given = {"queue": texts([queue for queue, _ in idle]), "lane": texts([lane for _, lane in idle])}
        database.one(connection, "drop_lanes", given)


def _save_queues(database: Database, connection: Connection, before: image.Image, after: image.Image) -> None:
    changed = [row for key, row in after.queues.items() if before.queues.get(key) != row]
    if not changed:
        return
    for (name, mode), row in zip(
        sorted(database.all(connection, "save_queues", image.columns(changed))), sorted(changed, key=_name), strict=True
    ):
        if mode != row.mode:
            raise QueueRefused(f"queue {name!r} has come to be used with {mode} meanwhile; use another queue")


def _notify(database: Database, connection: Connection, loaded: Loaded, events: Sequence[AnyEvent]) -> None:
    """O9, O10: who waits for a job that ended, and workers one of whose jobs was cancelled. Sent with the commit."""
    ended = sorted(loaded.numbers[job_id] for job_id in ended_jobs(events) if job_id in loaded.numbers)
    if ended:
        database.all(connection, "notify_waiters", {"nos": int8s(ended)})
    if cancels_a_run(loaded.state, events):
        connection.execute("select pg_notify(%s, %s)", [database.channel, RUN_CANCELLED])


def _name(row: Any) -> str:
    name: str = row.name
    return name


def in_one_lane(requests: Sequence[c.AcquireRequest]) -> set[LaneKey]:
    return {(request.queue, request.lane) for request in requests}
