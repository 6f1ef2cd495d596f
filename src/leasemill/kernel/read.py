"""What can be read of a state: the questions, their answers, and how they are answered.

Nothing here changes anything. Every answer is bounded by the question's limit, and is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from leasemill.kernel.bounds import check_limit
from leasemill.kernel.command import Command
from leasemill.kernel.filter import JOBS_LOOKED_AT, JobFilter, check_filter, fitting
from leasemill.kernel.limit_views import GetLimit, ListLimits, get_limit, list_limits
from leasemill.kernel.model import Action, ChainedJob, Job, JobGroup, JobState, Policy, QueueMode
from leasemill.kernel.orders import WorkerOrder
from leasemill.kernel.read_leases import ListLeases, list_leases
from leasemill.kernel.read_schedules import (
    DueSchedules,
    GetSchedule,
    ListSchedules,
    NextTick,
    due_schedules,
    get_schedule,
    list_schedules,
    next_tick,
)
from leasemill.kernel.state import Lane, Queue, State, has_place
from leasemill.kernel.unique import holder_of

__all__ = [
    "DueIn",
    "GetGroup",
    "GetJob",
    "GetKey",
    "GetLane",
    "GetOrder",
    "GetPolicies",
    "GetTime",
    "GetTotals",
    "GroupView",
    "JobPage",
    "KeyView",
    "LanePage",
    "LaneView",
    "ListActions",
    "ListGroups",
    "ListJobs",
    "ListLanes",
    "ListQueues",
    "QueueView",
    "Totals",
]


class JobPage(Struct, frozen=True):
    """Jobs of one page; `after` continues the reading, None: there is no more."""

    jobs: tuple[Job, ...]
    after: int | None


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
    """What the store holds now, over all queues."""

    counts: dict[JobState, int]
    timed_leases: int
    fence: int
    seq: int
    next_expiry_at: int | None


class GroupView(Struct, frozen=True):
    """A group and its counts. `ended_at`: when all had ended for the first time; `is_over`: all have ended now."""

    id: str
    then: ChainedJob | None
    on_end: ChainedJob | None
    parent: str | None
    created_at: int
    sealed_at: int | None
    ended_at: int | None
    succeeded_at: int | None
    is_over: bool
    total: int
    succeeded: int
    failed: int
    dead: int
    cancelled: int
    unfinished: int


class KeyView(Struct, frozen=True):
    """Which job holds a unique key of a queue. `kept_until`: it is held until then whatever becomes of the job, None:
    that is over."""

    queue: str
    key: str
    job_id: str
    kept_until: int | None


class GetKey(Command[KeyView | None], frozen=True):
    """None: no job of the queue holds it."""

    queue: str
    key: str


class GetJob(Command[Job | None], frozen=True):
    job_id: str


class ListJobs(Command[JobPage], frozen=True):
    """Jobs in the order of their sequence numbers, or newest first; `after`: the page before, 0: from the start."""

    filter: JobFilter
    limit: int
    after: int = 0
    newest_first: bool = False


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
    """In how many microseconds the next job of these queues is due; 0: now, None: no job waits for a time."""

    queues: Sequence[str]


class GetPolicies(Command[list[Policy | None]], frozen=True):
    """O4: of each of these queues the policy that was set for it, if any. It counts no jobs, however many wait."""

    queues: Sequence[str]


class GetTotals(Command[Totals], frozen=True):
    pass


class GetTime(Command[int], frozen=True):
    """The store's time, which all its other times are by: how old something is can be computed nowhere else."""


class GetGroup(Command[GroupView | None], frozen=True):
    group_id: str


class ListGroups(Command[list[GroupView]], frozen=True):
    """Groups by id; `open_only`: those that are not over. `after`: the last id of the page before. `parent`: those that
    are in this group."""

    limit: int
    open_only: bool = False
    after: str = ""
    parent: str | None = None


def check(query: Command[Any]) -> None:
    if isinstance(
        query,
        ListJobs
        | ListQueues
        | ListLanes
        | ListActions
        | ListLeases
        | ListGroups
        | ListLimits
        | GetLimit
        | ListSchedules
        | DueSchedules,
    ):
        check_limit(query)
    if isinstance(query, ListJobs):
        check_filter(query.filter)


def get_job(state: State, query: GetJob, _now: int) -> Job | None:
    job = state.look(query.job_id)
    return None if job is None else _copy(job)


def get_key(state: State, query: GetKey, now: int) -> KeyView | None:
    holder = holder_of(state, query.queue, query.key, now)
    if holder is None:
        return None
    return KeyView(query.queue, query.key, holder.job_id, holder.until if now < holder.until else None)


def _copy(job: Job) -> Job:
    return replace(job, executions=tuple(replace(execution) for execution in job.executions))


def list_jobs(state: State, query: ListJobs, _now: int) -> JobPage:
    jobs, after = fitting(state, query.filter, None, query.limit, query.after, newest_first=query.newest_first)
    return JobPage(tuple(_copy(job) for job in jobs), after)


def list_queues(state: State, query: ListQueues, now: int) -> list[QueueView]:
    names = nsmallest(query.limit, (name for name in state.queues if name > query.after))
    return [_queue_view(state.queues[name], now) for name in names]


def _queue_view(queue: Queue, now: int) -> QueueView:
    return QueueView(
        queue.name, queue.mode, queue.is_paused, queue.policy, dict(queue.counts), _next_available_at(queue, now)
    )


def _next_available_at(queue: Queue, now: int) -> int | None:
    """When the first job became or becomes claimable, but for a pause and a full queue."""
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
        None if lane.head is None else _copy(lane.head),
        lane.head is not None and lane.head.blocks_lane,
        lane.waiting_count,
        tuple(lane.finished or ()),
        tuple(lane.failed or ()),
    )


def list_actions(state: State, query: ListActions, _now: int) -> list[Action]:
    return list(islice(reversed(state.actions), query.limit))


def get_group(state: State, query: GetGroup, _now: int) -> GroupView | None:
    group = state.groups.get(query.group_id)
    return None if group is None else group_view(group)


def list_groups(state: State, query: ListGroups, _now: int) -> list[GroupView]:
    ids = (
        group.id
        for group in state.groups.values()
        if group.id > query.after and not (query.open_only and group.is_over) and query.parent in (None, group.parent)
    )
    return [group_view(state.groups[group_id]) for group_id in nsmallest(query.limit, ids)]


def group_view(group: JobGroup) -> GroupView:
    return GroupView(
        group.id,
        group.then,
        group.on_end,
        group.parent,
        group.created_at,
        group.sealed_at,
        group.ended_at,
        group.succeeded_at,
        group.is_over,
        group.total,
        group.succeeded,
        group.failed,
        group.dead,
        group.cancelled,
        group.unfinished,
    )


def totals(state: State) -> Totals:
    counts = {job_state: sum(queue.counts[job_state] for queue in state.queues.values()) for job_state in JobState}
    return Totals(counts, len(state.leases), state.fence, state.seq, state.leases.next_at())


ANSWERS: Final[dict[type, Callable[[State, Any, int], Any]]] = {
    GetJob: get_job,
    GetKey: get_key,
    ListJobs: list_jobs,
    ListQueues: list_queues,
    GetLane: get_lane,
    ListLanes: list_lanes,
    ListActions: list_actions,
    GetOrder: lambda state, query, _now: state.orders.get(query.instance),
    GetGroup: get_group,
    ListGroups: list_groups,
    DueIn: due_in,
    GetPolicies: get_policies,
    GetTotals: lambda state, _query, _now: totals(state),
    GetTime: lambda _state, _query, now: now,
    ListLimits: list_limits,
    GetLimit: get_limit,
    GetSchedule: get_schedule,
    ListSchedules: list_schedules,
    DueSchedules: due_schedules,
    NextTick: next_tick,
    ListLeases: list_leases,
}
