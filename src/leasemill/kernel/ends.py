"""What events mean for those who wait: which jobs have ended, and whether a running job was cancelled."""

from __future__ import annotations

from collections.abc import Iterable

from leasemill.kernel.events import (
    AnyEvent,
    ExecutionDone,
    ExecutionFailed,
    JobCancelled,
    JobPurged,
    JobsPruned,
    LeaseExpired,
)
from leasemill.kernel.model import AbortReason
from leasemill.kernel.state import State


def ended_jobs(events: Iterable[AnyEvent]) -> set[str]:
    """The jobs that will not run again by themselves (O9); also those that are forgotten."""
    ended: set[str] = set()
    for event in events:
        match event:
            case ExecutionDone() | JobCancelled() | JobPurged():
                ended.add(event.job_id)
            case ExecutionFailed() | LeaseExpired() if event.is_final:
                ended.add(event.job_id)
            case JobsPruned():
                ended.update(event.job_ids)
            case _:
                pass
    return ended


def cancels_a_run(state: State, events: Iterable[AnyEvent]) -> bool:
    """Whether a job was cancelled while a worker held it (O10). `state` is that after the events."""
    return any(isinstance(event, JobCancelled) and _was_held(state, event) for event in events)


def _was_held(state: State, event: JobCancelled) -> bool:
    job = state.jobs.get(event.job_id)
    last = job.executions[-1] if job is not None and job.executions else None
    return last is not None and last.reason is AbortReason.CANCELLED and last.finished_at == event.at
