"""What can be told of a state. Reads; every answer is bounded by the question's limit, and is a copy."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from itertools import islice

from msgspec.structs import replace

from leasemill.kernel.commands import (
    DueIn,
    Expiration,
    GetJob,
    GetLane,
    JobPage,
    LanePage,
    LaneView,
    ListActions,
    ListJobs,
    ListLanes,
    ListQueues,
    QueueView,
    Totals,
)
from leasemill.kernel.events import AnyEvent, ExecutionDone, LeaseExpired
from leasemill.kernel.model import Action, Job, JobState, Verb
from leasemill.kernel.operate import JOBS_LOOKED_AT, fitting
from leasemill.kernel.state import Lane, Queue, State


def get_job(state: State, query: GetJob) -> Job | None:
    job = state.jobs.get(query.job_id)
    return None if job is None else _copy(job)


def _copy(job: Job) -> Job:
    return replace(job, executions=tuple(replace(execution) for execution in job.executions))


def list_jobs(state: State, query: ListJobs) -> JobPage:
    jobs, after = fitting(state, query.filter, None, query.limit, query.after, newest_first=query.newest_first)
    return JobPage(tuple(_copy(job) for job in jobs), after)


def list_queues(state: State, query: ListQueues) -> list[QueueView]:
    names = nsmallest(query.limit, (name for name in state.queues if name > query.after))
    return [_queue_view(state.queues[name]) for name in names]


def _queue_view(queue: Queue) -> QueueView:
    return QueueView(
        queue.name, queue.mode, queue.is_paused, queue.policy, dict(queue.counts), _next_available_at(queue)
    )


def _next_available_at(queue: Queue) -> int | None:
    fronts = [order.next_at() for order in queue.ready if order is not None]
    return min((at for at in fronts if at is not None), default=None)


def due_in(state: State, query: DueIn, now: int) -> int | None:
    queues = [state.queues[name] for name in query.queues if name in state.queues]
    dues = [_next_available_at(queue) for queue in queues if not queue.is_paused]
    return min((max(0, at - now) for at in dues if at is not None), default=None)


def expirations(state: State, events: Sequence[AnyEvent]) -> list[Expiration]:
    """The leases that expired, of events that were just applied to this state."""
    found: list[Expiration] = []
    for event in events:
        if isinstance(event, LeaseExpired):
            after = JobState.DEAD if event.is_final else JobState.READY
        elif isinstance(event, ExecutionDone) and event.ended_by is Verb.EXPIRE:
            after = JobState.SUCCEEDED
        else:
            continue
        executions = state.jobs[event.job_id].executions
        execution = next(one for one in reversed(executions) if one.token == event.token)
        stuck_us = max(0, event.at - execution.expires_at)
        found.append(Expiration(event.job_id, execution.worker, execution.attempt, stuck_us, after))
    return found


def get_lane(state: State, query: GetLane) -> LaneView | None:
    lane = state.lanes.get((query.queue, query.lane))
    return None if lane is None else _lane_view(query.queue, query.lane, lane)


def list_lanes(state: State, query: ListLanes) -> LanePage:
    """Lanes with work, in the order of their heads."""
    views: list[LaneView] = []
    order = state.kept if query.blocked_only else state.listing
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


def list_actions(state: State, query: ListActions) -> list[Action]:
    return list(islice(reversed(state.actions), query.limit))


def totals(state: State) -> Totals:
    counts = {job_state: sum(queue.counts[job_state] for queue in state.queues.values()) for job_state in JobState}
    return Totals(counts, len(state.leases), state.fence, state.seq, state.leases.next_at())
