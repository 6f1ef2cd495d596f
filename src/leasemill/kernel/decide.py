"""The verbs: what follows from a command, given the state and the time. Decides and never changes anything.

Each function answers with the events to be applied and the outcome for the caller. Refusals come first, then the
straight path. What must never happen here: a change of state, a clock, a draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, TypeVar

from leasemill.errors import Invalid, JobConflict, QueueRefused
from leasemill.kernel.commands import (
    Acked,
    AckOutcome,
    AckReport,
    Acquired,
    AcquireOutcome,
    AcquireRequest,
    AlreadyAcquired,
    AlreadyFinished,
    Backlogged,
    Claim,
    Commit,
    CommitOutcome,
    Committed,
    Conflict,
    Duplicate,
    Enqueued,
    EnqueueOutcome,
    Expiration,
    Extended,
    ExtendOutcome,
    Followup,
    LaneHint,
    Lease,
    LeaseRef,
    Lost,
    Nacked,
    NackOutcome,
    NackReport,
    OutOfOrder,
    Released,
    ReleaseOutcome,
    ReleaseReport,
    Started,
    StartOutcome,
    StartReport,
)
from leasemill.kernel.events import (
    AnyEvent,
    ExecutionCommitted,
    ExecutionDone,
    ExecutionFailed,
    ExecutionStarted,
    FailureKept,
    JobEnqueued,
    LeaseExpired,
    LeaseExtended,
    LeaseGranted,
    LeaseReleased,
    ReportRefused,
)
from leasemill.kernel.model import (
    LIVE,
    NEVER,
    REFUSALS_KEPT,
    Execution,
    ExecutionStatus,
    Job,
    JobSpec,
    JobState,
    LossReason,
    OnFailure,
    QueueMode,
    Terms,
    Verb,
)
from leasemill.kernel.retry import backoff_us, exhausted, expires_at, quarantined, settle, settle_acquired
from leasemill.kernel.state import PRIORITIES, Lane, Queue, State, next_in_lane

LONGEST_STEM: Final = 100

OutcomeT = TypeVar("OutcomeT")
Decision = tuple[tuple[AnyEvent, ...], OutcomeT]


# Enqueue -------------------------------------------------------------------------------------------------------


def enqueue(state: State, job: JobSpec, now: int) -> Decision[EnqueueOutcome]:
    known = state.jobs.get(job.id)
    if known is not None:
        # E2: the same content is the same job; E4: other content is refused
        return (), (Duplicate(job.id) if known.spec == job else Conflict(job.id))
    return (JobEnqueued(job, now),), Enqueued(job.id)


def check_enqueue_queue(state: State, name: str) -> None:
    """I7: refuses jobs for a queue that is used with acquire."""
    queue = state.queues.get(name)
    if queue is not None and queue.mode is QueueMode.ACQUIRE:
        raise QueueRefused(f"queue {name!r} is used with acquire; enqueue into another queue")


def check_claim_queue(state: State, name: str) -> None:
    """N8: refuses claims from a queue that is used with acquire."""
    queue = state.queues.get(name)
    if queue is not None and queue.mode is QueueMode.ACQUIRE:
        raise QueueRefused(f"queue {name!r} is claimed by acquire only; claim from another queue")


def check_acquire_queue(state: State, name: str) -> None:
    """I7: refuses acquires from a queue that is used with enqueue and claim."""
    queue = state.queues.get(name)
    if queue is not None and queue.mode is QueueMode.CLAIM:
        raise QueueRefused(f"queue {name!r} is used with enqueue and claim; acquire from another queue")


def check_acquire(state: State, request: AcquireRequest, now: int) -> None:
    """I6: refuses an acquire whose id somebody gave to a job that came by enqueue; I2: one whose token was used."""
    job_id = offset_id(request.queue, request.lane, request.offset)
    job = state.jobs.get(job_id)
    if job is None:
        return
    if job.spec.offset is None:
        raise JobConflict(job_id)
    if _execution(job, request.token) is not None and _could_be_granted(job, now):
        # I2: a message that comes again after its lease ended does not make the old token good
        raise Invalid(f"acquire of {job_id!r} brings a token the job has had: draw a new one")


def _could_be_granted(job: Job, now: int) -> bool:
    return job.state is JobState.READY or (job.state is JobState.LEASED and not _held(job.executions[-1], now))


# Claim ---------------------------------------------------------------------------------------------------------


def claim(state: State, command: Claim, now: int) -> Decision[list[Lease]]:
    repeated = _repeated_claim(state, command, now)
    if repeated:
        return (), repeated  # C5: the same request, the same leases
    fence = state.fence
    events: list[LeaseGranted] = []
    leases: list[Lease] = []
    settled: dict[tuple[str, str], Terms] = {}
    for job in _claimable(state, command, now):
        spec = job.spec
        token = command.tokens[len(leases)]
        if _execution(job, token) is not None:
            break  # I2: a message that comes again after its leases ended does not make the old tokens good
        terms = settled.get((spec.queue, spec.kind)) if spec.policy is None else None
        if terms is None:
            terms = settle(spec.policy, state.queues[spec.queue].policy, command.kinds.get(spec.kind))
            if spec.policy is None:
                settled[spec.queue, spec.kind] = terms
        fence += 1
        event = _grant(job, token, command.worker, command.request_id, fence, terms, now)
        events.append(event)
        leases.append(_lease_of_grant(job, event))
    return tuple(events), leases


def _claimable(state: State, command: Claim, now: int) -> Iterator[Job]:
    """C1 and C2: by the caller's order of queues, then priority, then available_at, then sequence."""
    left = command.limit
    for name in dict.fromkeys(command.queues):  # C7: a queue named twice gives its jobs once
        queue = state.queues.get(name)
        if queue is None or queue.is_paused:
            continue
        for priority in range(PRIORITIES - 1, -1, -1):
            order = queue.ready[priority]
            if order is None:
                continue
            if left <= 0:
                return
            found = order.first(left, now)
            left -= len(found)
            yield from found


def _repeated_claim(state: State, command: Claim, now: int) -> list[Lease]:
    if command.request_id is None:
        return []
    granted = state.claims.get(command.request_id, {})
    return [
        _lease(state.jobs[execution.job_id], execution)
        for _, execution in sorted(granted.items())  # by fence: as they were given
        if now < execution.expires_at
    ]


def _grant(
    job: Job, token: str, worker: str, request_id: str | None, fence: int, terms: Terms, now: int
) -> LeaseGranted:
    return LeaseGranted(
        job.spec.id,
        job.attempt + 1,
        fence,
        token,
        worker,
        request_id,
        now,
        expires_at(terms, now),
        terms,
    )


def _lease_of_grant(job: Job, event: LeaseGranted) -> Lease:
    return Lease(
        job.spec,
        event.token,
        event.attempt,
        event.fence,
        event.worker,
        event.at,
        event.expires_at,
        event.terms,
        job.retries,
        job.expirations,
        job.created_at,
    )


def _lease(job: Job, execution: Execution) -> Lease:
    return Lease(
        job.spec,
        execution.token,
        execution.attempt,
        execution.fence,
        execution.worker,
        execution.leased_at,
        execution.expires_at,
        execution.terms,
        job.retries,
        job.expirations,
        job.created_at,
    )


# The fence -----------------------------------------------------------------------------------------------------


def _execution(job: Job | None, token: str) -> Execution | None:
    if job is None:
        return None
    for execution in reversed(job.executions):
        if execution.token == token:
            return execution
    return None


def _held(execution: Execution | None, now: int) -> bool:
    """L1 and L2: the token is the job's current one, and time has not revoked it."""
    return execution is not None and execution.status in LIVE and now < execution.expires_at


def _held_or_committed(execution: Execution | None, now: int) -> bool:
    """L6: what a token has committed counts whatever the time."""
    return execution is not None and (
        execution.status is ExecutionStatus.COMMITTED or (execution.status in LIVE and now < execution.expires_at)
    )


def _loss_reason(job: Job, execution: Execution | None) -> LossReason:
    if execution is None:
        return LossReason.UNKNOWN
    if execution.status in LIVE or execution.ended_by is Verb.EXPIRE:
        return LossReason.EXPIRED if execution.attempt == job.attempt else LossReason.SUPERSEDED
    if execution.ended_by is Verb.CANCEL:
        return LossReason.CANCELLED
    return LossReason.ENDED


def _refuse(
    job: Job | None, job_id: str, execution: Execution | None, token: str, verb: Verb, now: int
) -> Decision[Lost]:
    """L4: the report does nothing; L5: the refusal is kept, once for each token and verb."""
    if job is None:
        return (), Lost(job_id, verb, LossReason.UNKNOWN, None, 0)
    events: list[AnyEvent] = []
    if execution is not None and execution.status in LIVE:
        events.append(_expire_one(job, execution, now)[0])  # L3: once refused for its age, never revived
    reason = _loss_reason(job, execution)
    attempt = None if execution is None else execution.attempt
    worker = None if execution is None else execution.worker
    if len(job.refusals) < REFUSALS_KEPT and not any(
        refusal.token == token and refusal.verb is verb for refusal in job.refusals
    ):
        events.append(ReportRefused(job_id, token, verb, worker, attempt, job.attempt, reason, now))
    return tuple(events), Lost(job_id, verb, reason, attempt, job.attempt)


# Start, extend, commit -----------------------------------------------------------------------------------------


def start(state: State, report: StartReport, now: int) -> Decision[StartOutcome]:
    job = state.jobs.get(report.job_id)
    execution = _execution(job, report.token)
    if execution is None or not _held(execution, now):
        return _refuse(job, report.job_id, execution, report.token, Verb.START, now)
    if execution.status is not ExecutionStatus.LEASED:
        return (), Started(report.job_id)
    started_at = max(execution.leased_at, now - report.age_us)
    return (ExecutionStarted(report.job_id, report.token, now, started_at),), Started(report.job_id)


def extend(state: State, lease: LeaseRef, now: int) -> Decision[ExtendOutcome]:
    job = state.jobs.get(lease.job_id)
    execution = _execution(job, lease.token)
    if execution is None or not _held(execution, now):
        return _refuse(job, lease.job_id, execution, lease.token, Verb.EXTEND, now)
    until = expires_at(execution.terms, now)
    if until <= execution.expires_at:
        return (), Extended(lease.job_id, execution.expires_at)
    return (LeaseExtended(lease.job_id, lease.token, now, until),), Extended(lease.job_id, until)


def commit(state: State, command: Commit, now: int) -> Decision[CommitOutcome]:
    job = state.jobs.get(command.job_id)
    execution = _execution(job, command.token)
    if execution is not None and execution.committed_by is Verb.COMMIT:
        ids = tuple(followup_id(command.job_id, index) for index in range(len(command.followups)))
        return (), Committed(command.job_id, ids, is_repeat=True)  # X4: once; L6: its repeat is answered
    if job is None or not _held(execution, now):
        return _refuse(job, command.job_id, execution, command.token, Verb.COMMIT, now)
    followups = tuple(
        _followup_spec(command.job_id, index, followup) for index, followup in enumerate(command.followups)
    )
    for spec in followups:
        check_enqueue_queue(state, spec.queue)
        _, outcome = enqueue(state, spec, now)
        if isinstance(outcome, Conflict):
            return (), outcome  # X6: one conflict refuses the whole commit
    event = ExecutionCommitted(command.job_id, command.token, now, command.result, followups)
    return (event,), Committed(command.job_id, tuple(spec.id for spec in followups))


def followup_id(job_id: str, index: int) -> str:
    """I6: the same commit gives the same ids. A long one is cut to a digest, so that a job that follows up on itself
    for ever never runs out of room."""
    stem = job_id if len(job_id) <= LONGEST_STEM else blake2b(job_id.encode(), digest_size=16).hexdigest()
    return f"{stem}/{index}"


def _followup_spec(job_id: str, index: int, followup: Followup) -> JobSpec:
    return JobSpec(
        followup_id(job_id, index),
        followup.queue,
        followup.kind,
        followup.payload,
        followup.lane,
        followup.priority,
        followup.run_at,
        followup.delay_us,
        followup.policy,
    )


# Ack, nack, release --------------------------------------------------------------------------------------------


def ack(state: State, report: AckReport, now: int) -> Decision[AckOutcome]:
    job = state.jobs.get(report.job_id)
    execution = _execution(job, report.token)
    if job is not None and execution is not None and execution.status is ExecutionStatus.DONE:
        return (), Acked(report.job_id, _hint_at_head(state, job), is_repeat=True)  # L6
    if job is None or not _held_or_committed(execution, now):
        return _refuse(job, report.job_id, execution, report.token, Verb.ACK, now)
    event = ExecutionDone(report.job_id, report.token, now, Verb.ACK, report.result, None)
    return (event,), Acked(report.job_id, _hint_behind_head(state, job))


def nack(state: State, report: NackReport, now: int) -> Decision[NackOutcome]:
    job = state.jobs.get(report.job_id)
    execution = _execution(job, report.token)
    if job is not None and execution is not None:
        repeated = _repeated_nack(state, job, execution, report)
        if repeated is not None:
            return (), repeated  # L6
    if job is None or execution is None or not _held_or_committed(execution, now):
        return _refuse(job, report.job_id, execution, report.token, Verb.NACK, now)
    if execution.status is ExecutionStatus.COMMITTED:
        return (_done_after_commit(execution, Verb.NACK, now, report.error),), Nacked(
            report.job_id, JobState.SUCCEEDED, job.retries, next_in_lane=_hint_behind_head(state, job)
        )
    terms = execution.terms
    if report.is_permanent or exhausted(job, terms):
        return _give_up(state, job, report, terms, now)
    if report.keep_lease:
        return (FailureKept(report.job_id, report.token, now, report.error, report.report_id),), Nacked(
            report.job_id, JobState.LEASED, job.retries + 1
        )
    delay_us = backoff_us(terms, job.retries, report.jitter) if report.delay_us is None else report.delay_us
    retry_at = now + delay_us
    event = ExecutionFailed(report.job_id, report.token, now, report.error, False, False, retry_at)
    return (event,), Nacked(report.job_id, JobState.READY, job.retries + 1, retry_at)


def _give_up(state: State, job: Job, report: NackReport, terms: Terms, now: int) -> Decision[NackOutcome]:
    blocks_lane = _blocks_lane(job, terms)
    event = ExecutionFailed(report.job_id, report.token, now, report.error, True, blocks_lane, None)
    hint = None if blocks_lane else _hint_behind_head(state, job)
    return (event,), Nacked(report.job_id, JobState.FAILED, job.retries, next_in_lane=hint)


def _repeated_nack(state: State, job: Job, execution: Execution, report: NackReport) -> Nacked | None:
    if execution.status is ExecutionStatus.DONE and execution.ended_by is not Verb.ACK:
        return Nacked(
            report.job_id,
            JobState.SUCCEEDED,
            job.retries,
            next_in_lane=_hint_at_head(state, job),
            is_repeat=True,
        )
    if execution.ended_by is Verb.NACK:
        state_then = JobState.FAILED if execution.is_final else JobState.READY
        hint = _hint_at_head(state, job) if execution.is_final else None
        return Nacked(report.job_id, state_then, job.retries, execution.retry_at, hint, is_repeat=True)
    kept = execution.kept_failure
    if report.keep_lease and kept is not None and kept.report_id == report.report_id:
        return Nacked(report.job_id, JobState.LEASED, kept.retries, is_repeat=True)
    return None


def release(state: State, report: ReleaseReport, now: int) -> Decision[ReleaseOutcome]:
    job = state.jobs.get(report.job_id)
    execution = _execution(job, report.token)
    if execution is not None:
        if execution.status is ExecutionStatus.DONE and execution.ended_by is not Verb.ACK:
            return (), Released(report.job_id, JobState.SUCCEEDED, is_repeat=True)
        if execution.ended_by is Verb.RELEASE:
            return (), Released(report.job_id, JobState.READY, is_repeat=True)
    if job is None or execution is None or not _held_or_committed(execution, now):
        return _refuse(job, report.job_id, execution, report.token, Verb.RELEASE, now)
    if execution.status is ExecutionStatus.COMMITTED:
        event = _done_after_commit(execution, Verb.RELEASE, now, report.error)
        return (event,), Released(report.job_id, JobState.SUCCEEDED)
    available_at = job.available_at if report.delay_us is None else now + report.delay_us
    event_released = LeaseReleased(report.job_id, report.token, now, available_at, report.error)
    return (event_released,), Released(report.job_id, JobState.READY)


def _done_after_commit(execution: Execution, by: Verb, now: int, note: str | None) -> ExecutionDone:
    """X5: after COMMITTED a job can only succeed."""
    return ExecutionDone(execution.job_id, execution.token, now, by, None, note)


def _blocks_lane(job: Job, terms: Terms) -> bool:
    return job.spec.lane is not None and terms.on_failure is OnFailure.BLOCK


def _hint_behind_head(state: State, job: Job) -> LaneHint | None:
    """N7: who is next once this job, the head of its lane, has ended."""
    lane = _lane_of(state, job)
    return None if lane is None else _hint(next_in_lane(state, lane))


def _hint_at_head(state: State, job: Job) -> LaneHint | None:
    lane = _lane_of(state, job)
    if lane is None or lane.head is job:
        return None
    return _hint(lane.head)


def _lane_of(state: State, job: Job) -> Lane | None:
    return None if job.spec.lane is None else state.lanes.get((job.spec.queue, job.spec.lane))


def _hint(job: Job | None) -> LaneHint | None:
    return None if job is None else LaneHint(job.spec.id, job.spec.offset)


# Expire --------------------------------------------------------------------------------------------------------


def expire(state: State, limit: int, now: int) -> Decision[list[Expiration]]:
    """L7: record what time has decided, at most `limit` leases, the longest expired first."""
    events: list[AnyEvent] = []
    outcomes: list[Expiration] = []
    for execution in state.leases.first(limit, now):
        job = state.jobs[execution.job_id]
        event, after = _expire_one(job, execution, now)
        events.append(event)
        stuck_us = now - execution.expires_at
        outcomes.append(Expiration(execution.job_id, execution.worker, execution.attempt, stuck_us, after))
    return tuple(events), outcomes


def expire_regardless(state: State, limit: int, now: int) -> list[AnyEvent]:
    """End timed leases whatever their time: their holders are known to be gone."""
    found = state.leases.first(limit, NEVER)
    return [_expire_one(state.jobs[execution.job_id], execution, now)[0] for execution in found]


def _expire_one(job: Job, execution: Execution, now: int) -> tuple[AnyEvent, JobState]:
    if execution.status is ExecutionStatus.COMMITTED:
        return _done_after_commit(execution, Verb.EXPIRE, now, None), JobState.SUCCEEDED
    is_final = execution.status is ExecutionStatus.STARTED and quarantined(job, execution.terms)
    event = LeaseExpired(
        execution.job_id, execution.token, now, is_final, is_final and _blocks_lane(job, execution.terms)
    )
    return event, JobState.DEAD if is_final else JobState.READY


# Acquire -------------------------------------------------------------------------------------------------------


def expire_head(state: State, request: AcquireRequest, now: int) -> Decision[None]:
    """N8: a timed lease that has run out does not stand in the way of an acquire."""
    lane = state.lanes.get((request.queue, request.lane))
    head = None if lane is None else lane.head
    if head is None or head.state is not JobState.LEASED or now < head.executions[-1].expires_at:
        return (), None
    event, _ = _expire_one(head, head.executions[-1], now)
    return (event,), None


def acquire(state: State, request: AcquireRequest, now: int) -> Decision[AcquireOutcome]:
    queue = state.queues.get(request.queue)
    lane = state.lanes.get((request.queue, request.lane))
    if lane is not None and lane.finished is not None and request.offset in lane.finished:
        return (), AlreadyFinished(JobState.SUCCEEDED)
    if lane is not None and lane.failed is not None and request.offset in lane.failed:
        return (), AlreadyFinished(JobState.FAILED)
    spec = _offset_spec(request)
    head = None if lane is None else lane.head
    if head is None:
        return _acquire_new(state, queue, spec, request, now)
    if head.state is JobState.READY:
        return _acquire_head(state, queue, head, request, now)
    if head.spec.offset == request.offset and head.state is JobState.LEASED:
        return (), AlreadyAcquired(_lease(head, head.executions[-1]))
    events = () if spec.id in state.jobs else (JobEnqueued(spec, now),)
    return events, Backlogged(spec.id)


def _acquire_new(
    state: State, queue: Queue | None, spec: JobSpec, request: AcquireRequest, now: int
) -> Decision[AcquireOutcome]:
    job = Job(spec, 0, now, now, now)
    grant = _acquire_grant(state, queue, job, request, now)
    return (JobEnqueued(spec, now), grant), Acquired(_lease_of_grant(job, grant))


def _acquire_head(
    state: State, queue: Queue | None, head: Job, request: AcquireRequest, now: int
) -> Decision[AcquireOutcome]:
    if head.spec.offset != request.offset:
        return (), OutOfOrder(LaneHint(head.spec.id, head.spec.offset))
    grant = _acquire_grant(state, queue, head, request, now)
    return (grant,), Acquired(_lease_of_grant(head, grant))


def _acquire_grant(state: State, queue: Queue | None, job: Job, request: AcquireRequest, now: int) -> LeaseGranted:
    terms = settle_acquired(job.spec.policy, None if queue is None else queue.policy)
    return _grant(job, request.token, request.worker, None, state.fence + 1, terms, now)


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
    """I6: the id of an acquired job follows from its place."""
    return f"{queue}/{lane}/{offset}"
