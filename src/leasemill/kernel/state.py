"""The state of the kernel: jobs, queues, lanes, and the indexes that make every step short.

Everything but jobs, queues, lanes' offset ranges, groups, keys that are kept, schedules, worker commands and the two
counters is derived and can be rebuilt from them (`kernel.image`). The functions here keep the indexes in step; only the
applying of events calls them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from leasemill.kernel.index.limit_index import Gates, NamedLimit, Tally, by_breadth
from leasemill.kernel.index.order import SequenceOrder, TimeOrder, is_claimable
from leasemill.kernel.index.ranges import Ranges
from leasemill.kernel.index.taken_keys import TakenKeys
from leasemill.kernel.model import (
    ACTIONS_KEPT,
    LIVE,
    QUEUE_LIMIT,
    Action,
    Execution,
    Job,
    JobGroup,
    JobSpec,
    JobState,
    LimitUse,
    Policy,
    QueueMode,
    WorkerOrder,
)
from leasemill.kernel.schedule import Schedule

READY: Final = JobState.READY
LEASED: Final = JobState.LEASED
SUCCEEDED: Final = JobState.SUCCEEDED
FAILED: Final = JobState.FAILED
DEAD: Final = JobState.DEAD
CANCELLED: Final = JobState.CANCELLED

PRIORITIES: Final = 10

PLAIN_FORMAT: Final = 1
RULES_FORMAT: Final = 2
DEATHS_FORMAT: Final = 3
ORDERS_FORMAT: Final = 4
KEYS_FORMAT: Final = 5
CLOCK_FORMAT: Final = 6
"""The format that a reader of the events must know: with rules or headers, more than versions before these did."""

LaneKey = tuple[str, str]


def due_at(job: JobSpec, at: int) -> int:
    """E3: when a job enqueued at `at` may first be claimed."""
    if job.run_at is not None:
        return max(at, job.run_at)
    return at + job.delay_us


class Queue:
    """A queue: how it is used, its counts, and its claimable jobs by priority, those under limits behind gates."""

    __slots__ = ("counts", "gates", "is_paused", "limit", "mode", "name", "policy", "ready")

    def __init__(self, name: str) -> None:
        self.name = name
        self.mode: QueueMode | None = None
        self.is_paused = False
        self.policy: Policy | None = None
        self.counts: dict[JobState, int] = dict.fromkeys(JobState, 0)
        self.ready: list[TimeOrder[Job] | None] = [None] * PRIORITIES
        self.gates: Gates | None = None
        self.limit: NamedLimit | None = None


class Lane:
    """A lane: its head, and the seq of each job that waits behind it.

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
        "limits",
        "listing",
        "over",
        "queues",
        "rates",
        "ready_order",
        "schedules",
        "seq",
        "unsuccessful",
        "worker_commands",
    )

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.listing = SequenceOrder()
        self.unsuccessful = SequenceOrder()
        self.queues: dict[str, Queue] = {}
        self.lanes: dict[LaneKey, Lane] = {}
        self.keys = TakenKeys()
        self.kept_keys: list[tuple[int, str, str]] = []
        """A heap: keys that are kept for a job that is forgotten, by when that ends; each with its queue."""
        self.leases: TimeOrder[Execution] = TimeOrder(_is_live)
        self.claims: dict[str, dict[int, Execution]] = {}
        self.finished: TimeOrder[Job] = TimeOrder(is_finished)
        self.ready_order: Callable[[], TimeOrder[Job]] = partial(TimeOrder, is_claimable)
        """An order for claimable jobs of one queue and priority."""
        self.limits: dict[str, NamedLimit] = {}
        self.rates: list[tuple[int, str, bool, str]] = []
        self.actions: deque[Action] = deque(maxlen=ACTIONS_KEPT)
        self.schedules: dict[str, Schedule] = {}
        self.worker_commands: dict[str, WorkerOrder] = {}
        """The latest command of each instance of a worker, the newest last."""
        self.seq = 0
        self.fence = 0
        self.format = PLAIN_FORMAT
        self.groups: dict[str, JobGroup] = {}
        self.over: TimeOrder[JobGroup] = TimeOrder(_is_over)
        self.due: list[
            Job | JobGroup
        ] = []  # what the events just applied may have consequences for: consequences.follow

    def look(self, job_id: str) -> Job | None:
        """A job to be read, not to be changed."""
        return self.jobs.get(job_id)

    def give_back(self, job: Job) -> None:
        """Called for a job that was taken by its id, was changed and is not looked at again soon. Does nothing here."""

    def take_out(self, job: Job) -> None:
        """Take a job out of everything that knows it, except its lane and its group. It may be one that was looked
        at."""
        seq = job.seq
        del self.jobs[job.spec.id]
        self.listing.discard(seq)
        self.unsuccessful.discard(seq)
        job.seq = 0  # dead in every order it was in
        if job.state is SUCCEEDED and job.spec.offset is None:
            self.finished.remove(finished_at(job), seq)

    def require_format(self, number: int) -> None:
        """Events from here on hold what earlier versions do not know (W16)."""
        self.format = max(self.format, number)

    def queue(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
            queue.limit = self.limits.get(QUEUE_LIMIT + name)
        return queue

    def limit(self, name: str) -> NamedLimit:
        limit = self.limits.get(name)
        if limit is None:
            limit = self.limits[name] = NamedLimit(name)
        return limit


def _is_live(entry: tuple[int, int, Execution]) -> bool:
    execution = entry[2]
    return execution.status in LIVE and execution.expires_at == entry[0]


def is_finished(entry: tuple[int, int, Job]) -> bool:
    return entry[2].seq == entry[1]


def _is_over(entry: tuple[int, int, JobGroup]) -> bool:
    return entry[2].seq == entry[1]


# Jobs ------------------------------------------------------------------------------------


def move(state: State, job: Job, to: JobState, at: int) -> None:
    counts = state.queues[job.spec.queue].counts
    was = job.state
    counts[was] -= 1
    counts[to] += 1
    job.state = to
    job.updated_at = at
    if job.spec.rules is not None and job.spec.rules.limits:
        if to is LEASED:
            take_places(state, job)
        elif was is LEASED:
            _give_places_back(state, job)


def forget(state: State, job: Job) -> None:
    state.queues[job.spec.queue].counts[job.state] -= 1
    state.take_out(job)
    if job.spec.rules is not None and job.spec.rules.group is not None:
        forget_member(state, job.spec.rules.group)
    if job.spec.offset is not None:
        assert job.spec.lane is not None
        lane = state.lanes.get((job.spec.queue, job.spec.lane))
        if lane is not None and lane.last_finished == job.spec.id:
            lane.last_finished = None


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
    queue = state.queues[spec.queue]
    if spec.rules is not None and spec.rules.limits:
        if queue.gates is None:
            queue.gates = Gates()
        queue.gates.add(_tallies(state, spec.rules.limits), job, job.available_at <= at)
        return
    ready = queue.ready
    order = ready[spec.priority]
    if order is None:
        order = ready[spec.priority] = state.ready_order()
    order.push(job.available_at, job.seq, job, job.available_at <= at)


def leave_ready(state: State, job: Job) -> None:
    spec = job.spec
    if spec.offset is not None or (spec.lane is not None and state.lanes[spec.queue, spec.lane].head is not job):
        return
    _leave_order(state, job, job.available_at)


def _leave_order(state: State, job: Job, available_at: int) -> None:
    spec = job.spec
    queue = state.queues[spec.queue]
    if spec.rules is not None and spec.rules.limits:
        _leave_gates(state, queue, job, available_at)
        return
    order = queue.ready[spec.priority]
    assert order is not None
    order.remove(available_at, job.seq)


def postpone(state: State, job: Job, available_at: int, at: int) -> None:
    """A READY job is due at another time."""
    spec, before = job.spec, job.available_at
    job.available_at = available_at
    if available_at == before or (spec.lane is not None and state.lanes[spec.queue, spec.lane].head is not job):
        return
    _leave_order(state, job, before)
    make_ready(state, job, at)


def finished_at(job: Job) -> int:
    finished_at = job.executions[-1].finished_at
    assert finished_at is not None
    return finished_at


# Limits ----------------------------------------------------------------------------------


def _tallies(state: State, limits: tuple[LimitUse, ...]) -> list[Tally]:
    return [state.limit(use.name).tally(use.key) for use in by_breadth(limits)]


def take_places(state: State, job: Job) -> None:
    """T1: a leased job holds one place of each limit it names."""
    assert job.spec.rules is not None
    for use in job.spec.rules.limits:
        state.limit(use.name).tally(use.key).hold(job.spec.id)


def _give_places_back(state: State, job: Job) -> None:
    assert job.spec.rules is not None
    for use in job.spec.rules.limits:
        tally = state.limits[use.name].tallies[use.key]
        tally.give_back(job.spec.id)
        drop_idle(state, tally)


def _leave_gates(state: State, queue: Queue, job: Job, available_at: int) -> None:
    assert queue.gates is not None and job.spec.rules is not None
    path = _tallies(state, job.spec.rules.limits)
    queue.gates.remove(path, job, available_at)
    if not queue.gates.roots:
        queue.gates = None
    for tally in path:
        drop_idle(state, tally)


def has_place(queue: Queue) -> bool:
    """Return True if the queue's own limit has a place."""
    places = None if queue.limit is None else queue.limit.terms.places
    return places is None or queue.counts[LEASED] < places


def drop_idle(state: State, tally: Tally) -> None:
    """Drop a limit and key that no job uses, so that it costs nothing."""
    limit = tally.limit
    if tally.is_idle() and limit.tallies.get(tally.key) is tally:
        del limit.tallies[tally.key]
        if limit.is_idle():
            del state.limits[limit.name]
