"""Reading queues and lanes, and what concerns the whole store: totals, the time, the audit trail, orders to workers."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from itertools import islice

from msgspec import Struct

from leasemill.kernel.command import Command
from leasemill.kernel.model import Action, Job, JobState, Policy, QueueMode, WorkerOrder
from leasemill.kernel.read.filter import JOBS_LOOKED_AT
from leasemill.kernel.read.jobs import copy_of
from leasemill.kernel.state import Lane, Queue, State, has_place

__all__ = [
    "DueIn",
    "GetLane",
    "GetOrder",
    "GetPolicies",
    "GetTime",
    "GetTotals",
    "LanePage",
    "LaneView",
    "ListActions",
    "ListLanes",
    "ListQueues",
    "QueueView",
    "Totals",
]


class QueueView(Struct, frozen=True):
    """A queue and its counts. `oldest_available_at`: since when its first job can be claimed, or when it can be."""

    name: str
    mode: QueueMode | None
    is_paused: bool
    policy: Policy | None
    counts: dict[JobState, int]
    oldest_available_at: int | None


class LaneView(Struct, frozen=True):
    """A lane: its head, how many jobs wait behind it, and the offsets that have finished and failed, as ranges."""

    queue: str
    lane: str
    head: Job | None
    is_blocked: bool
    waiting: int
    finished: tuple[tuple[int, int], ...]
    failed: tuple[tuple[int, int], ...]


class LanePage(Struct, frozen=True):
    """Lanes of one page; `after` continues the reading, None: there is no more."""

    lanes: tuple[LaneView, ...]
    after: int | None


class Totals(Struct, frozen=True):
    """The counts of the store, over all queues."""

    counts: dict[JobState, int]
    timed_leases: int
    fence: int
    seq: int
    next_expiry_at: int | None


class ListQueues(Command[list[QueueView]], frozen=True):
    limit: int
    after: str = ""


class GetLane(Command[LaneView | None], frozen=True):
    queue: str
    lane: str


class ListLanes(Command[LanePage], frozen=True):
    queue: str
    limit: int
    blocked_only: bool = False
    after: int = 0


class ListActions(Command[list[Action]], frozen=True):
    """The latest operator actions, newest first."""

    limit: int


class GetOrder(Command[WorkerOrder | None], frozen=True):
    """The latest order to one process of a worker; `instance` is in the worker's record."""

    instance: str


class DueIn(Command[int | None], frozen=True):
    """Returns the microseconds until the next job of these queues is due; 0: now, null: no job waits for a time."""

    queues: Sequence[str]


class GetPolicies(Command[list[Policy | None]], frozen=True):
    """O4: of each of these queues the policy that was set for it, if any. It counts no jobs, however many wait."""

    queues: Sequence[str]


class GetTotals(Command[Totals], frozen=True):
    pass


class GetTime(Command[int], frozen=True):
    """The store's time, which all its other times are by: how old something is can be computed nowhere else."""


def list_queues(state: State, query: ListQueues, now: int) -> list[QueueView]:
    names = nsmallest(query.limit, (name for name in state.queues if name > query.after))
    return [_queue_view(state.queues[name], now) for name in names]


def _queue_view(queue: Queue, now: int) -> QueueView:
    return QueueView(
        queue.name, queue.mode, queue.is_paused, queue.policy, dict(queue.counts), _next_available_at(queue, now)
    )


def _next_available_at(queue: Queue, now: int) -> int | None:
    """Return when the first job became or becomes claimable, not counting a pause or a full queue."""
    fronts = [order.next_at() for order in queue.ready if order is not None]
    if queue.gates is not None:
        fronts.append(queue.gates.next_at(now))
    return min((at for at in fronts if at is not None), default=None)


def due_in(state: State, query: DueIn, now: int) -> int | None:
    queues = [state.queues[name] for name in query.queues if name in state.queues]
    dues = [_next_available_at(queue, now) for queue in queues if not queue.is_paused and has_place(queue)]
    return min((max(0, at - now) for at in dues if at is not None), default=None)


def get_policies(state: State, query: GetPolicies, _now: int) -> list[Policy | None]:
    return [state.queues[name].policy if name in state.queues else None for name in query.queues]


def get_lane(state: State, query: GetLane, _now: int) -> LaneView | None:
    lane = state.lanes.get((query.queue, query.lane))
    return None if lane is None else _lane_view(query.queue, query.lane, lane)


def list_lanes(state: State, query: ListLanes, _now: int) -> LanePage:
    """Lanes with work, in the order of their heads."""
    views: list[LaneView] = []
    order = state.unsuccessful if query.blocked_only else state.listing
    for looked_at, job in enumerate(islice(order.after(query.after), JOBS_LOOKED_AT), 1):
        spec = job.spec
        if spec.lane is not None and spec.queue == query.queue:
            lane = state.lanes.get((spec.queue, spec.lane))
            if lane is not None and lane.head is job:
                views.append(_lane_view(spec.queue, spec.lane, lane))
        if len(views) == query.limit or looked_at == JOBS_LOOKED_AT:
            return LanePage(tuple(views), job.seq)
    return LanePage(tuple(views), None)


def _lane_view(queue: str, key: str, lane: Lane) -> LaneView:
    return LaneView(
        queue,
        key,
        None if lane.head is None else copy_of(lane.head),
        lane.head is not None and lane.head.blocks_lane,
        lane.waiting_count,
        tuple(lane.finished or ()),
        tuple(lane.failed or ()),
    )


def list_actions(state: State, query: ListActions, _now: int) -> list[Action]:
    return list(islice(reversed(state.actions), query.limit))


def totals(state: State) -> Totals:
    counts = {job_state: sum(queue.counts[job_state] for queue in state.queues.values()) for job_state in JobState}
    return Totals(counts, len(state.leases), state.fence, state.seq, state.leases.next_at())
