"""acquire: a caller that brings its own offsets takes one of them, in the order of its lane. Rules N8 to N10 and I6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.errors import Invalid, JobConflict, QueueRefused
from leasemill.kernel.bounds import (
    LARGEST_OFFSET,
    check_batch,
    check_json,
    check_name,
    check_policy,
    check_range,
    check_string,
    check_text,
)
from leasemill.kernel.command import Command, Decision, Do
from leasemill.kernel.events import JobEnqueued, LeaseGranted
from leasemill.kernel.model import Job, JobSpec, JobState, Policy, QueueMode
from leasemill.kernel.state import State
from leasemill.kernel.transitions.executions import expire_one
from leasemill.kernel.transitions.fence import held
from leasemill.kernel.transitions.grant import Lease, grant, has_had, lease
from leasemill.kernel.transitions.lanes import LaneHint
from leasemill.kernel.transitions.retry import settle_acquired

__all__ = [
    "Acquire",
    "AcquireOutcome",
    "AcquireRequest",
    "Acquired",
    "AlreadyAcquired",
    "AlreadyFinished",
    "Backlogged",
    "OutOfOrder",
]


class AcquireRequest(Struct, frozen=True):
    queue: str
    lane: str
    offset: int
    worker: str
    token: str
    kind: str = "offset"
    payload: bytes = b"{}"
    policy: Policy | None = None


class Acquired(Struct, frozen=True):
    lease: Lease


class AlreadyAcquired(Struct, frozen=True):
    lease: Lease


class Backlogged(Struct, frozen=True):
    """Another job of the lane is in flight; this one waits behind it."""

    job_id: str


class AlreadyFinished(Struct, frozen=True):
    """The offset ended before, in this state."""

    state: JobState


class OutOfOrder(Struct, frozen=True):
    """Nothing is in flight and the lane's next is another job."""

    expected: LaneHint


AcquireOutcome: TypeAlias = Acquired | AlreadyAcquired | Backlogged | AlreadyFinished | OutOfOrder


class Acquire(Command[list[AcquireOutcome]], frozen=True):
    requests: Sequence[AcquireRequest]


def check(command: Acquire) -> None:
    check_batch(command.requests)
    for request in command.requests:
        check_name("queue", request.queue)
        check_text("lane", request.lane)
        check_text("worker", request.worker)
        check_string("token", request.token)
        check_name("kind", request.kind)
        check_json("payload", request.payload)
        check_policy(request.policy)
        check_range("offset", request.offset, 0, LARGEST_OFFSET)


def steps(state: State, command: Acquire, now: int, do: Do) -> list[AcquireOutcome]:
    for name in {request.queue for request in command.requests}:
        _check_queue(state, name)
    for request in command.requests:
        _check_job(state, request, now)
    outcomes: list[AcquireOutcome] = []
    for request in command.requests:
        do(_expire_head(state, request, now))
        outcomes.append(do(decide(state, request, now)))
    return outcomes


def _check_queue(state: State, name: str) -> None:
    """I7: refuses acquires from a queue that is used with enqueue and claim."""
    queue = state.queues.get(name)
    if queue is not None and queue.mode is QueueMode.CLAIM:
        raise QueueRefused(f"queue {name!r} is used with enqueue and claim; acquire from another queue")


def _check_job(state: State, request: AcquireRequest, now: int) -> None:
    """I6: refuses an acquire whose id somebody gave to a job that came by enqueue; I2: one whose token was used."""
    job_id = offset_id(request.queue, request.lane, request.offset)
    job = state.jobs.get(job_id)
    if job is None:
        return
    if job.spec.offset is None:
        raise JobConflict(job_id)
    if has_had(job, request.token) and _could_be_granted(job, now):
        raise Invalid(f"acquire of {job_id!r} uses a token that the job has had before: draw a new one")


def _could_be_granted(job: Job, now: int) -> bool:
    return job.state is JobState.READY or (job.state is JobState.LEASED and not held(job.executions[-1], now))


def _expire_head(state: State, request: AcquireRequest, now: int) -> Decision[None]:
    """N8: a timed lease that has run out does not stand in the way of an acquire."""
    lane = state.lanes.get((request.queue, request.lane))
    head = None if lane is None else lane.head
    if head is None or head.state is not JobState.LEASED or now < head.executions[-1].expires_at:
        return (), None
    event, _ = expire_one(head, head.executions[-1], now)
    return (event,), None


def decide(state: State, request: AcquireRequest, now: int) -> Decision[AcquireOutcome]:
    lane = state.lanes.get((request.queue, request.lane))
    if lane is not None and lane.finished is not None and request.offset in lane.finished:
        return (), AlreadyFinished(JobState.SUCCEEDED)
    if lane is not None and lane.failed is not None and request.offset in lane.failed:
        return (), AlreadyFinished(JobState.FAILED)
    spec = _offset_spec(request)
    head = None if lane is None else lane.head
    if head is None:
        job = Job(spec, 0, now, now, now)
        granted = _grant(state, job, request, now)
        return (JobEnqueued(spec, now), granted), Acquired(lease(job, granted, now))
    if head.state is JobState.READY:
        if head.spec.offset != request.offset:
            return (), OutOfOrder(LaneHint(head.spec.id, head.spec.offset))
        granted = _grant(state, head, request, now)
        return (granted,), Acquired(lease(head, granted, now))
    if head.spec.offset == request.offset and head.state is JobState.LEASED:
        execution = head.executions[-1]
        return (), AlreadyAcquired(lease(head, execution, execution.leased_at))
    events = () if spec.id in state.jobs else (JobEnqueued(spec, now),)
    return events, Backlogged(spec.id)


def _grant(state: State, job: Job, request: AcquireRequest, now: int) -> LeaseGranted:
    queue = state.queues.get(request.queue)
    terms = settle_acquired(job.spec.policy, None if queue is None else queue.policy)
    return grant(job, request.token, request.worker, None, state.fence + 1, terms, now)


def _offset_spec(request: AcquireRequest) -> JobSpec:
    return JobSpec(
        offset_id(request.queue, request.lane, request.offset),
        request.queue,
        request.kind,
        request.payload,
        lane=request.lane,
        policy=request.policy,
        offset=request.offset,
    )


def offset_id(queue: str, lane: str, offset: int) -> str:
    """I6: the id of an acquired job follows from its queue, lane and offset."""
    return f"{queue}/{lane}/{offset}"
