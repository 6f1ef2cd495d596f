"""How an execution ends, and what happens to its job. Shared by the verbs that can end one."""

from __future__ import annotations

from collections.abc import Iterable

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
from leasemill.kernel.executions import does_not_follow, end, live, mark_committed, reported
from leasemill.kernel.groups import member_ended
from leasemill.kernel.lanes import fail_offset, finish_offset, leave_lane
from leasemill.kernel.model import EndingVerb, Execution, ExecutionStatus, Job, JobState, OnFailure, Terms, Verb
from leasemill.kernel.retry import quarantined
from leasemill.kernel.state import DEAD, LEASED, READY, SUCCEEDED, State, make_ready, move

# Deciding ------------------------------------------------------------------------------------------------------


def done_after_commit(execution: Execution, by: EndingVerb, now: int, note: str | None) -> ExecutionDone:
    """X5: after COMMITTED a job can only succeed."""
    return ExecutionDone(execution.job_id, execution.token, now, by, None, note)


def expire_one(job: Job, execution: Execution, now: int) -> tuple[AnyEvent, JobState]:
    """What happens to a lease that has run out, and the job's state afterwards."""
    if execution.status is ExecutionStatus.COMMITTED:
        return done_after_commit(execution, Verb.EXPIRE, now, None), JobState.SUCCEEDED
    is_final, is_blocking = quarantine(job, execution)
    event = LeaseExpired(execution.job_id, execution.token, now, is_final, is_blocking)
    return event, JobState.DEAD if is_final else JobState.READY


def quarantine(job: Job, execution: Execution) -> tuple[bool, bool]:
    """F4: whether a run that ends without a report of its own is the last one, and whether it blocks its lane."""
    is_final = execution.status is ExecutionStatus.STARTED and quarantined(job, execution.terms)
    return is_final, is_final and blocks_lane(job, execution.terms)


def blocks_lane(job: Job, terms: Terms) -> bool:
    """N5: whether the job blocks its lane when it fails for good."""
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
    """A run that did not end by a report of its own. F4: it counts if it had started."""
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
