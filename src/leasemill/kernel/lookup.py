"""The job and the execution that an event is about.

An event that does not follow from what came before is a broken log, not a case to handle.
"""

from __future__ import annotations

from typing import Any, NoReturn

from leasemill.errors import Broken
from leasemill.kernel.model import Execution, ExecutionStatus, Job
from leasemill.kernel.state import LEASED, State


def job_of(state: State, event: Any) -> Job:
    job = state.jobs.get(event.job_id)
    if job is None:
        does_not_follow(event, "there is no such job")
    return job


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


def does_not_follow(event: Any, why: str) -> NoReturn:
    raise Broken(f"{type(event).__name__} for job {event.job_id!r} does not follow from what came before: {why}")
