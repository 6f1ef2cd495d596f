"""cancel: an operator ends a job permanently, unless its effect stands. Rules O1, O10 and X5."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.kernel.bounds import check_batch
from leasemill.kernel.command import Command, Decision, Do
from leasemill.kernel.events import AnyEvent, JobCancelled
from leasemill.kernel.model import AbortReason, Cancellation, ExecutionStatus, JobState, Verb
from leasemill.kernel.state import CANCELLED, LEASED, READY, SUCCEEDED, State, leave_ready, move
from leasemill.kernel.transitions.actions import check_operator, record_job
from leasemill.kernel.transitions.executions import does_not_follow, done_after_commit, end, job_of
from leasemill.kernel.transitions.groups import member_ended
from leasemill.kernel.transitions.lanes import fail_offset, leave_lane

__all__ = ["AlreadySucceeded", "Cancel", "CancelOutcome", "Cancelled", "Missing"]


class Cancelled(Struct, frozen=True):
    """CANCELLED, or SUCCEEDED if the job had committed."""

    job_id: str
    state: JobState
    is_repeat: bool = False


class Missing(Struct, frozen=True):
    job_id: str


class AlreadySucceeded(Struct, frozen=True):
    job_id: str


CancelOutcome: TypeAlias = Cancelled | AlreadySucceeded | Missing


class Cancel(Command[list[CancelOutcome]], frozen=True):
    job_ids: Sequence[str]
    by: str
    reason: str


def check(command: Cancel) -> None:
    check_batch(command.job_ids)
    check_operator(command)


def steps(state: State, command: Cancel, now: int, do: Do) -> list[CancelOutcome]:
    return [do(decide(state, job_id, command, now)) for job_id in command.job_ids]


def decide(state: State, job_id: str, command: Cancel, now: int) -> Decision[CancelOutcome]:
    job = state.jobs.get(job_id)
    if job is None:
        return (), Missing(job_id)
    if job.state is JobState.SUCCEEDED:
        return (), AlreadySucceeded(job_id)
    if job.is_cancelled:
        return (), Cancelled(job_id, JobState.CANCELLED, is_repeat=True)
    cancelled = JobCancelled(job_id, now, command.by, command.reason)
    execution = job.executions[-1] if job.executions else None
    if execution is not None and execution.status is ExecutionStatus.COMMITTED:
        note = f"cancelled by {command.by} after it had committed: {command.reason}"
        done = done_after_commit(execution, Verb.CANCEL, now, note)
        return (done, cancelled), Cancelled(job_id, JobState.SUCCEEDED)
    return (cancelled,), Cancelled(job_id, JobState.CANCELLED)


def apply(state: State, event: JobCancelled) -> None:
    job = job_of(state, event)
    was = job.state
    if was is CANCELLED:
        does_not_follow(event, "it is cancelled")
    if was is LEASED and job.executions[-1].status is ExecutionStatus.COMMITTED:
        does_not_follow(event, "its effect stands")
    record_job(state, Verb.CANCEL, event.job_id, event)
    if was is SUCCEEDED:
        return  # X5: it had committed; the act is recorded, the job stays as it is
    was_member = was in (READY, LEASED) or job.blocks_lane
    if was is LEASED:
        execution = job.executions[-1]
        execution.reason = AbortReason.CANCELLED
        execution.is_final = True
        end(state, execution, ExecutionStatus.ABORTED, Verb.CANCEL, event.at)
    job.is_cancelled = True
    job.cancellation = Cancellation(event.at, event.by, event.reason)
    job.blocks_lane = False
    move(state, job, CANCELLED, event.at)
    state.unsuccessful.add(job)
    if was is READY:
        leave_ready(state, job)
    if was_member:
        fail_offset(state, job)
        leave_lane(state, job, event.at)
    if job.spec.rules is not None:
        member_ended(state, job, was)


def cancels_a_run(state: State, events: Iterable[AnyEvent]) -> bool:
    """Return True if a job was cancelled while a worker held it (O10). `state` is that after the events."""
    return any(isinstance(event, JobCancelled) and _was_held(state, event) for event in events)


def _was_held(state: State, event: JobCancelled) -> bool:
    job = state.jobs.get(event.job_id)
    last = job.executions[-1] if job is not None and job.executions else None
    return last is not None and last.reason is AbortReason.CANCELLED and last.finished_at == event.at
