"""Executions: how a run is found by its event, held, committed and ended, and what its end does to the job.

Shared by the verbs that grant, report on or end a lease. An event that does not follow from what came before is a
broken log, not a case to handle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from leasemill.errors import Broken
from leasemill.kernel.events import (
    AnyEvent,
    ExecutionDone,
    ExecutionFailed,
    HolderDied,
    JobCancelled,
    JobPurged,
    JobsPruned,
    LeaseExpired,
)
from leasemill.kernel.model import NEVER, EndingVerb, Execution, ExecutionStatus, Job, JobState, OnFailure, Terms, Verb
from leasemill.kernel.state import DEAD, LEASED, READY, SUCCEEDED, State, make_ready, move
from leasemill.kernel.transitions.formats import VERB_FORMATS, require_verb
from leasemill.kernel.transitions.groups import member_ended
from leasemill.kernel.transitions.lanes import fail_offset, finish_offset, leave_lane
from leasemill.kernel.transitions.retry import quarantined

# Deciding ------------------------------------------------------------------------------------------------------


def done_after_commit(execution: Execution, by: EndingVerb, now: int, note: str | None) -> ExecutionDone:
    """X5: after COMMITTED a job can only succeed."""
    return ExecutionDone(execution.job_id, execution.token, now, by, None, note)


def expire_one(job: Job, execution: Execution, now: int) -> tuple[AnyEvent, JobState]:
    """Decide what happens to a lease that has expired, and the job's state afterwards."""
    if execution.status is ExecutionStatus.COMMITTED:
        return done_after_commit(execution, Verb.EXPIRE, now, None), JobState.SUCCEEDED
    is_final, is_blocking = quarantine(job, execution)
    event = LeaseExpired(execution.job_id, execution.token, now, is_final, is_blocking)
    return event, JobState.DEAD if is_final else JobState.READY


def quarantine(job: Job, execution: Execution) -> tuple[bool, bool]:
    """F4: return whether a run that ends without its own report is the last one, and whether it blocks its lane."""
    is_final = execution.status is ExecutionStatus.STARTED and quarantined(job, execution.terms)
    return is_final, is_final and blocks_lane(job, execution.terms)


def blocks_lane(job: Job, terms: Terms) -> bool:
    """N5: return True if the job blocks its lane when it fails permanently."""
    return job.spec.lane is not None and terms.on_failure is OnFailure.BLOCK


def ended_jobs(events: Iterable[AnyEvent]) -> set[str]:
    """The jobs that will not run again by themselves (O9); also those that are forgotten."""
    ended: set[str] = set()
    for event in events:
        match event:
            case ExecutionDone() | JobCancelled() | JobPurged():
                ended.add(event.job_id)
            case ExecutionFailed() | LeaseExpired() | HolderDied() if event.is_final:
                ended.add(event.job_id)
            case JobsPruned():
                ended.update(event.job_ids)
            case _:
                pass
    return ended


# Applying ------------------------------------------------------------------------------------------------------


def job_of(state: State, event: Any) -> Job:
    try:
        return state.jobs[event.job_id]
    except KeyError:
        does_not_follow(event, "there is no such job")


def live(state: State, event: Any) -> tuple[Job, Execution]:
    """The execution a report is about: always the job's latest, and live."""
    job = job_of(state, event)
    execution = job.executions[-1] if job.executions else None
    if execution is None or execution.token != event.token or job.state is not LEASED:
        does_not_follow(event, "the job's live lease is another one")
    return job, execution


def uncommitted(state: State, event: Any) -> tuple[Job, Execution]:
    """X5: once committed, an execution can only be done."""
    job, execution = live(state, event)
    if execution.status is ExecutionStatus.COMMITTED:
        does_not_follow(event, "its effect stands")
    return job, execution


def reported(state: State, event: Any) -> tuple[Job, Execution]:
    """The execution that its holder reports on: live, and the lease is held when the report is decided on (L2). What
    ends a lease without its holder is not bound to its time: a new boot expires leases early (W10)."""
    job, execution = live(state, event)
    if event.at >= execution.expires_at:
        does_not_follow(event, "its lease had expired")  # L3: time revokes ownership
    return job, execution


def reported_uncommitted(state: State, event: Any) -> tuple[Job, Execution]:
    job, execution = reported(state, event)
    if execution.status is ExecutionStatus.COMMITTED:
        does_not_follow(event, "its effect stands")
    return job, execution


def does_not_follow(event: Any, why: str) -> NoReturn:
    raise Broken(f"{type(event).__name__} for job {event.job_id!r} does not follow from what came before: {why}")


def hold(state: State, execution: Execution) -> None:
    if execution.expires_at != NEVER:
        state.leases.push(execution.expires_at, execution.fence, execution)
    if execution.request_id is not None:
        state.claims.setdefault(execution.request_id, {})[execution.fence] = execution


def mark_committed(job: Job, execution: Execution, by: Verb, at: int, result: bytes | None) -> None:
    if execution.started_at is None:
        execution.started_at = at
    execution.committed_at = at
    execution.committed_by = by
    job.result = result


def end(state: State, execution: Execution, status: ExecutionStatus, by: EndingVerb, at: int) -> None:
    if VERB_FORMATS[by] > state.format:  # rare, and this is the way of every end
        require_verb(state, by)
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


def apply(state: State, event: ExecutionDone) -> None:
    job, execution = live(state, event)
    if execution.committed_at is None:
        if event.ended_by is not Verb.ACK:
            does_not_follow(event, f"{event.ended_by} finishes a committed execution alone")
        reported(state, event)  # L6: only what was committed before counts whatever the time
        mark_committed(job, execution, event.ended_by, event.at, event.result)
    execution.error = event.error
    end(state, execution, ExecutionStatus.DONE, event.ended_by, event.at)
    move(state, job, SUCCEEDED, event.at)
    if job.spec.offset is None:
        state.finished.push(event.at, job.seq, job)
    else:
        finish_offset(state, job)
    leave_lane(state, job, event.at)
    if job.spec.rules is not None:
        member_ended(state, job, LEASED)


def end_unfinished(
    state: State, job: Job, execution: Execution, by: EndingVerb, event: LeaseExpired | HolderDied
) -> None:
    """End a run that did not end by its own report. F4: it counts if it had started."""
    if execution.status is ExecutionStatus.STARTED:
        job.expirations += 1
    execution.is_final = event.is_final
    end(state, execution, ExecutionStatus.ABORTED, by, event.at)
    if event.is_final:
        give_up(state, job, DEAD, event.at, blocks_lane=event.blocks_lane)
    else:
        give_back(state, job, event.at)


def give_back(state: State, job: Job, at: int) -> None:
    """A leased job is READY again; in a lane it is still the head."""
    move(state, job, READY, at)
    make_ready(state, job, at)


def give_up(state: State, job: Job, to: JobState, at: int, *, blocks_lane: bool) -> None:
    """A leased job is FAILED or DEAD."""
    move(state, job, to, at)
    state.unsuccessful.add(job)
    fail_offset(state, job)
    if blocks_lane:
        job.blocks_lane = True
    else:
        leave_lane(state, job, at)
    if job.spec.rules is not None:
        member_ended(state, job, LEASED)
