"""`apply`: the only code that changes a state.

It takes an event that was decided (here or by another process) and carries it out: it never refuses, never looks at a
clock, never draws. An event that does not follow from what came before is a broken log, not a case to handle.
What must never happen here: a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from leasemill.errors import Broken
from leasemill.kernel.events import (
    AnyEvent,
    ExecutionCommitted,
    ExecutionDone,
    ExecutionFailed,
    ExecutionStarted,
    FailureKept,
    JobCancelled,
    JobEnqueued,
    JobPurged,
    JobRedriven,
    JobsPruned,
    LeaseExpired,
    LeaseExtended,
    LeaseGranted,
    LeaseReleased,
    QueuePaused,
    QueuePolicySet,
    QueueResumed,
    ReportRefused,
)
from leasemill.kernel.model import (
    EXECUTIONS_KEPT,
    NEVER,
    AbortReason,
    Action,
    Cancellation,
    Execution,
    ExecutionStatus,
    Job,
    JobState,
    KeptFailure,
    Refusal,
    Verb,
)
from leasemill.kernel.state import (
    CANCELLED,
    DEAD,
    FAILED,
    LEASED,
    READY,
    SUCCEEDED,
    State,
    add,
    fail_offset,
    finish_offset,
    forget,
    hold,
    join_lane,
    leave_lane,
    leave_ready,
    make_ready,
    move,
    renumber,
    unfail_offset,
)


def apply(state: State, event: AnyEvent) -> None:
    """Carry out one event."""
    _APPLIERS[type(event)](state, event)


def apply_all(state: State, events: Iterable[AnyEvent]) -> None:
    """Carry out events, in order."""
    appliers = _APPLIERS
    for event in events:
        appliers[type(event)](state, event)


# Enqueue and claim ---------------------------------------------------------------------------------------------


def _enqueued(state: State, event: JobEnqueued) -> None:
    add(state, event.job, event.at)


def _granted(state: State, event: LeaseGranted) -> None:
    job = _job(state, event)
    if job.state is not READY or event.attempt != job.attempt + 1:
        _does_not_follow(event, f"the job is {job.state} after attempt {job.attempt}")
    if event.fence <= state.fence:
        _does_not_follow(event, f"the fence is at {state.fence}")  # I3
    if job.spec.lane is not None and state.lanes[job.spec.queue, job.spec.lane].head is not job:
        _does_not_follow(event, "another job is at the head of its lane")  # N1
    execution = Execution(
        job.spec.id,
        event.attempt,
        event.fence,
        event.token,
        event.worker,
        event.request_id,
        event.at,
        event.expires_at,
        event.terms,
    )
    executions = job.executions
    if len(executions) >= EXECUTIONS_KEPT:
        executions = (executions[0], *executions[2:])
    job.executions = (*executions, execution)
    job.attempt = event.attempt
    state.fence = event.fence
    move(state, job, LEASED, event.at)
    leave_ready(state, job)
    hold(state, execution)


def _started(state: State, event: ExecutionStarted) -> None:
    job, execution = _live(state, event)
    if execution.status is not ExecutionStatus.LEASED:
        _does_not_follow(event, f"the execution is {execution.status}")
    execution.status = ExecutionStatus.STARTED
    execution.started_at = event.started_at
    job.updated_at = event.at


def _extended(state: State, event: LeaseExtended) -> None:
    job, execution = _live(state, event)
    if event.expires_at <= execution.expires_at:
        _does_not_follow(event, "the lease is held for longer")  # L9
    earlier, execution.expires_at = execution.expires_at, event.expires_at
    state.leases.push(event.expires_at, execution.fence, execution)
    state.leases.remove(earlier, execution.fence)
    job.updated_at = event.at


# Ends of an execution ------------------------------------------------------------------------------------------


def _committed(state: State, event: ExecutionCommitted) -> None:
    job, execution = _uncommitted(state, event)  # X4
    _mark_committed(job, execution, Verb.COMMIT, event.at, event.result)
    execution.status = ExecutionStatus.COMMITTED
    job.updated_at = event.at
    for followup in event.followups:
        add(state, followup, event.at)


def _done(state: State, event: ExecutionDone) -> None:
    job, execution = _live(state, event)
    if execution.committed_at is None:
        if event.ended_by is not Verb.ACK:
            _does_not_follow(event, f"{event.ended_by} finishes a committed execution alone")
        _mark_committed(job, execution, event.ended_by, event.at, event.result)
    execution.error = event.error
    _end(state, execution, ExecutionStatus.DONE, event.ended_by, event.at)
    _succeed(state, job, event.at)


def _failed(state: State, event: ExecutionFailed) -> None:
    job, execution = _uncommitted(state, event)
    if execution.started_at is None:
        execution.started_at = event.at
    execution.reason = AbortReason.FAILED
    execution.error = event.error
    execution.is_final = event.is_final
    execution.retry_at = event.retry_at
    _end(state, execution, ExecutionStatus.ABORTED, Verb.NACK, event.at)
    if event.retry_at is None:
        _give_up(state, job, FAILED, event.at, blocks_lane=event.blocks_lane)
    else:
        job.retries += 1
        job.available_at = event.retry_at
        _return(state, job, event.at)


def _failure_kept(state: State, event: FailureKept) -> None:
    job, execution = _uncommitted(state, event)
    job.retries += 1
    job.updated_at = event.at
    if execution.status is ExecutionStatus.LEASED:
        execution.status = ExecutionStatus.STARTED
        execution.started_at = event.at
    execution.error = event.error
    execution.kept_failure = KeptFailure(event.report_id, job.retries)


def _released(state: State, event: LeaseReleased) -> None:
    job, execution = _uncommitted(state, event)
    execution.reason = AbortReason.RELEASED
    if event.error is not None:
        execution.error = event.error
    _end(state, execution, ExecutionStatus.ABORTED, Verb.RELEASE, event.at)
    job.available_at = event.available_at
    _return(state, job, event.at)


def _expired(state: State, event: LeaseExpired) -> None:
    job, execution = _uncommitted(state, event)
    if execution.status is ExecutionStatus.STARTED:
        job.expirations += 1
    execution.reason = AbortReason.EXPIRED
    execution.is_final = event.is_final
    _end(state, execution, ExecutionStatus.ABORTED, Verb.EXPIRE, event.at)
    if event.is_final:
        _give_up(state, job, DEAD, event.at, blocks_lane=event.blocks_lane)
    else:
        _return(state, job, event.at)


def _refused(state: State, event: ReportRefused) -> None:
    job = _job(state, event)
    job.refusals = (
        *job.refusals,
        Refusal(
            event.verb,
            event.token,
            event.worker,
            event.attempt,
            event.current_attempt,
            event.reason,
            event.at,
        ),
    )


# The operator's ------------------------------------------------------------------------------------------------


def _cancelled(state: State, event: JobCancelled) -> None:
    job = _job(state, event)
    was = job.state
    if was is CANCELLED:
        _does_not_follow(event, "it is cancelled")
    if was is LEASED and job.executions[-1].status is ExecutionStatus.COMMITTED:
        _does_not_follow(event, "its effect stands")
    _note(state, Verb.CANCEL, event.job_id, event)
    if was is SUCCEEDED:
        return  # X5: it had committed; the act is kept, the job stays as it is
    was_member = was in (READY, LEASED) or job.blocks_lane
    if was is LEASED:
        execution = job.executions[-1]
        execution.reason = AbortReason.CANCELLED
        execution.is_final = True
        _end(state, execution, ExecutionStatus.ABORTED, Verb.CANCEL, event.at)
    job.is_cancelled = True
    job.cancellation = Cancellation(event.at, event.by, event.reason)
    job.blocks_lane = False
    move(state, job, CANCELLED, event.at)
    state.kept.add(job)
    if was is READY:
        leave_ready(state, job)
    if was_member:
        fail_offset(state, job)
        leave_lane(state, job, event.at)


def _redriven(state: State, event: JobRedriven) -> None:
    job = _job(state, event)
    if job.state not in (FAILED, DEAD, CANCELLED):
        _does_not_follow(event, f"the job is {job.state}")
    state.kept.discard(job.seq)
    job.retries = 0
    job.expirations = 0
    job.is_cancelled = False
    job.redriven_attempt = job.attempt
    job.available_at = event.at
    move(state, job, READY, event.at)
    unfail_offset(state, job)
    if job.blocks_lane:
        job.blocks_lane = False
        make_ready(state, job, event.at)
    else:
        renumber(state, job)
        if job.spec.lane is None:
            make_ready(state, job, event.at)
        else:
            join_lane(state, job, event.at)
    _note(state, Verb.REDRIVE, event.job_id, event)


def _purged(state: State, event: JobPurged) -> None:
    job = _job(state, event)
    if job.state in (READY, LEASED):
        _does_not_follow(event, f"the job is {job.state}")  # O5
    blocked, job.blocks_lane = job.blocks_lane, False
    if blocked:
        leave_lane(state, job, event.at)
    forget(state, job)
    _note(state, Verb.PURGE, event.job_id, event)


def _paused(state: State, event: QueuePaused) -> None:
    state.queue(event.queue).is_paused = True
    _note(state, Verb.PAUSE, event.queue, event)


def _resumed(state: State, event: QueueResumed) -> None:
    state.queue(event.queue).is_paused = False
    _note(state, Verb.RESUME, event.queue, event)


def _policy_set(state: State, event: QueuePolicySet) -> None:
    state.queue(event.queue).policy = event.policy
    _note(state, Verb.SET_POLICY, event.queue, event)


def _pruned(state: State, event: JobsPruned) -> None:
    jobs = [state.jobs.get(job_id) for job_id in event.job_ids]
    for job_id, job in zip(event.job_ids, jobs, strict=True):
        if job is None or job.state is not SUCCEEDED:
            raise Broken(f"JobsPruned for job {job_id!r} does not follow from what came before: it has not succeeded")
    for job in jobs:
        assert job is not None
        forget(state, job)


def _note(
    state: State,
    verb: Verb,
    target: str,
    event: JobCancelled | JobRedriven | JobPurged | QueuePaused | QueueResumed | QueuePolicySet,
) -> None:
    state.actions.append(Action(event.at, verb, event.by, target, event.reason))


# What the steps above share ------------------------------------------------------------------------------------


def _job(state: State, event: Any) -> Job:
    job = state.jobs.get(event.job_id)
    if job is None:
        _does_not_follow(event, "there is no such job")
    return job


def _live(state: State, event: Any) -> tuple[Job, Execution]:
    """The execution a report speaks of: always the job's latest, and live."""
    job = _job(state, event)
    execution = job.executions[-1] if job.executions else None
    if execution is None or execution.token != event.token or job.state is not LEASED:
        _does_not_follow(event, "the job's live lease is another one")
    return job, execution


def _uncommitted(state: State, event: Any) -> tuple[Job, Execution]:
    """X5: once committed, an execution can only be done."""
    job, execution = _live(state, event)
    if execution.status is ExecutionStatus.COMMITTED:
        _does_not_follow(event, "its effect stands")
    return job, execution


def _does_not_follow(event: Any, why: str) -> NoReturn:
    raise Broken(f"{type(event).__name__} for job {event.job_id!r} does not follow from what came before: {why}")


def _mark_committed(job: Job, execution: Execution, by: Verb, at: int, result: bytes | None) -> None:
    if execution.started_at is None:
        execution.started_at = at
    execution.committed_at = at
    execution.committed_by = by
    job.result = result


def _end(state: State, execution: Execution, status: ExecutionStatus, by: Verb, at: int) -> None:
    execution.status = status
    execution.ended_by = by
    execution.finished_at = at
    if execution.expires_at != NEVER:
        state.leases.remove(execution.expires_at, execution.fence)
    if execution.request_id is not None:
        claimed = state.claims[execution.request_id]
        del claimed[execution.fence]
        if not claimed:
            del state.claims[execution.request_id]


def _return(state: State, job: Job, at: int) -> None:
    """A leased job is READY again; in a lane it is still the head."""
    move(state, job, READY, at)
    make_ready(state, job, at)


def _succeed(state: State, job: Job, at: int) -> None:
    move(state, job, SUCCEEDED, at)
    if job.spec.offset is None:
        state.finished.push(at, job.seq, job)
    else:
        finish_offset(state, job)
    leave_lane(state, job, at)


def _give_up(state: State, job: Job, to: JobState, at: int, *, blocks_lane: bool) -> None:
    move(state, job, to, at)
    state.kept.add(job)
    fail_offset(state, job)
    if blocks_lane:
        job.blocks_lane = True
    else:
        leave_lane(state, job, at)


_APPLIERS: Final[dict[type, Callable[[State, Any], None]]] = {
    JobEnqueued: _enqueued,
    LeaseGranted: _granted,
    ExecutionStarted: _started,
    LeaseExtended: _extended,
    ExecutionCommitted: _committed,
    ExecutionDone: _done,
    ExecutionFailed: _failed,
    FailureKept: _failure_kept,
    LeaseReleased: _released,
    LeaseExpired: _expired,
    ReportRefused: _refused,
    JobCancelled: _cancelled,
    JobRedriven: _redriven,
    JobPurged: _purged,
    QueuePaused: _paused,
    QueueResumed: _resumed,
    QueuePolicySet: _policy_set,
    JobsPruned: _pruned,
}
