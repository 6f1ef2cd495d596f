"""Executions as events are applied: found by the event, held, committed, ended.

An event that does not follow from what came before is a broken log, not a case to handle.
"""

from __future__ import annotations

from typing import Any, NoReturn

from leasemill.errors import Broken
from leasemill.kernel.formats import VERB_FORMATS, require_verb
from leasemill.kernel.model import NEVER, EndingVerb, Execution, ExecutionStatus, Job, Verb
from leasemill.kernel.state import LEASED, State


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
