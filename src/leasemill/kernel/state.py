"""What the kernel knows: jobs, queues, lanes, and the indexes that make every step short.

Everything but jobs, queues, lanes' offset ranges, groups, keys that are kept and the two counters is derived and can be
rebuilt from them (`kernel.image`). The functions here keep the indexes in step; only the applying of events calls them.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from leasemill.kernel.model import (
    ACTIONS_KEPT,
    LIVE,
    NEVER,
    Action,
    Execution,
    Job,
    JobGroup,
    JobSpec,
    JobState,
    Policy,
    QueueMode,
)
from leasemill.kernel.order import SequenceOrder, TimeOrder
from leasemill.kernel.ranges import Ranges

READY: Final = JobState.READY
LEASED: Final = JobState.LEASED
SUCCEEDED: Final = JobState.SUCCEEDED
FAILED: Final = JobState.FAILED
DEAD: Final = JobState.DEAD
CANCELLED: Final = JobState.CANCELLED

PRIORITIES: Final = 10

PLAIN_FORMAT: Final = 1
RULES_FORMAT: Final = 2
"""What a reader of the events must know: with rules or headers, more than versions before these did."""

LaneKey = tuple[str, str]


class Key(NamedTuple):
    """Which job took a unique key last, and until when it is kept whatever becomes of the job (0: it is not)."""

    job_id: str
    until: int


def due_at(job: JobSpec, at: int) -> int:
    """E3: when a job enqueued at `at` may first be claimed."""
    if job.run_at is not None:
        return max(at, job.run_at)
    return at + job.delay_us


class Queue:
    """One queue: how it is used, how it stands, and its claimable jobs by priority."""

    __slots__ = ("counts", "is_paused", "mode", "name", "policy", "ready")

    def __init__(self, name: str) -> None:
        self.name = name
        self.mode: QueueMode | None = None
        self.is_paused = False
        self.policy: Policy | None = None
        self.counts: dict[JobState, int] = dict.fromkeys(JobState, 0)
        self.ready: list[TimeOrder[Job] | None] = [None] * PRIORITIES


class Lane:
    """One lane: its head, and the seq of each job that waits behind it.

    A seq whose job is gone, ended or moved to the tail is skipped when its turn comes.
    """

    __slots__ = ("failed", "finished", "head", "last_finished", "waiting", "waiting_count")

    def __init__(self) -> None:
        self.head: Job | None = None
        self.waiting: deque[int] | None = None
        self.waiting_count = 0
        self.finished: Ranges | None = None
        self.failed: Ranges | None = None
        self.last_finished: str | None = None


class State:
    """Jobs, queues and lanes, with the indexes that make every step short."""

    __slots__ = (
        "actions",
        "claims",
        "due",
        "fence",
        "finished",
        "format",
        "groups",
        "jobs",
        "kept_keys",
        "keys",
        "lanes",
        "leases",
        "listing",
        "over",
        "queues",
        "seq",
        "unsuccessful",
    )

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.listing = SequenceOrder()
        self.unsuccessful = SequenceOrder()
        self.queues: dict[str, Queue] = {}
        self.lanes: dict[LaneKey, Lane] = {}
        self.keys: dict[str, Key] = {}
        self.kept_keys: list[tuple[int, str]] = []
        """A heap: keys that are kept for a job that is forgotten, by when that ends."""
        self.leases: TimeOrder[Execution] = TimeOrder(_is_live)
        self.claims: dict[str, dict[int, Execution]] = {}
        self.finished: TimeOrder[Job] = TimeOrder(_is_finished)
        self.actions: deque[Action] = deque(maxlen=ACTIONS_KEPT)
        self.seq = 0
        self.fence = 0
        self.format = PLAIN_FORMAT
        self.groups: dict[str, JobGroup] = {}
        self.over: TimeOrder[JobGroup] = TimeOrder(_is_over)
        self.due: list[
            Job | JobGroup
        ] = []  # what the events just applied may have consequences for: consequences.follow

    def queue(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
        return queue


def _is_claimable(entry: tuple[int, int, Job]) -> bool:
    job = entry[2]
    return job.state is READY and job.seq == entry[1] and job.available_at == entry[0]


def _is_live(entry: tuple[int, int, Execution]) -> bool:
    execution = entry[2]
    return execution.status in LIVE and execution.expires_at == entry[0]


def _is_finished(entry: tuple[int, int, Job]) -> bool:
    return entry[2].seq == entry[1]


def _is_over(entry: tuple[int, int, JobGroup]) -> bool:
    return entry[2].seq == entry[1]


# Jobs ------------------------------------------------------------------------------------


def move(state: State, job: Job, to: JobState, at: int) -> None:
    counts = state.queues[job.spec.queue].counts
    counts[job.state] -= 1
    counts[to] += 1
    job.state = to
    job.updated_at = at


def hold(state: State, execution: Execution) -> None:
    if execution.expires_at != NEVER:
        state.leases.push(execution.expires_at, execution.fence, execution)
    if execution.request_id is not None:
        state.claims.setdefault(execution.request_id, {})[execution.fence] = execution


def forget(state: State, job: Job) -> None:
    state.queues[job.spec.queue].counts[job.state] -= 1
    seq = job.seq
    del state.jobs[job.spec.id]
    state.listing.discard(seq)
    state.unsuccessful.discard(seq)
    job.seq = 0  # dead in every order it was in
    if job.spec.rules is not None and job.spec.rules.group is not None:
        forget_member(state, job.spec.rules.group)
    if job.spec.offset is not None:
        assert job.spec.lane is not None
        lane = state.lanes.get((job.spec.queue, job.spec.lane))
        if lane is not None and lane.last_finished == job.spec.id:
            lane.last_finished = None
    elif job.state is SUCCEEDED:
        state.finished.remove(finished_at(job), seq)


def forget_member(state: State, group_id: str) -> None:
    group = state.groups[group_id]
    group.remembered -= 1
    list_if_over(state, group)


def list_if_over(state: State, group: JobGroup) -> None:
    """B4: a group is kept until it is over and nothing of it is there that could be redriven."""
    if group.is_over and not group.remembered:
        assert group.ended_at is not None
        state.over.push(group.ended_at, group.seq, group)


def renumber(state: State, job: Job) -> None:
    state.listing.discard(job.seq)
    state.seq += 1
    job.seq = state.seq
    state.listing.add(job)


def make_ready(state: State, job: Job, at: int) -> None:
    spec = job.spec
    if spec.offset is not None:
        return  # N8: it is taken by acquire only
    ready = state.queues[spec.queue].ready
    order = ready[spec.priority]
    if order is None:
        order = ready[spec.priority] = TimeOrder(_is_claimable)
    order.push(job.available_at, job.seq, job, job.available_at <= at)


def leave_ready(state: State, job: Job) -> None:
    spec = job.spec
    if spec.offset is not None or (spec.lane is not None and state.lanes[spec.queue, spec.lane].head is not job):
        return
    order = state.queues[spec.queue].ready[spec.priority]
    assert order is not None
    order.remove(job.available_at, job.seq)


def postpone(state: State, job: Job, available_at: int, at: int) -> None:
    """A READY job is due at another time."""
    spec, before = job.spec, job.available_at
    job.available_at = available_at
    if available_at == before or (spec.lane is not None and state.lanes[spec.queue, spec.lane].head is not job):
        return
    order = state.queues[spec.queue].ready[spec.priority]
    assert order is not None
    order.remove(before, job.seq)
    make_ready(state, job, at)


def finished_at(job: Job) -> int:
    finished_at = job.executions[-1].finished_at
    assert finished_at is not None
    return finished_at
