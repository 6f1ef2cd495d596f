"""The operator's commands: what follows from them. Decides and never changes anything.

Redrive and purge look at a bounded number of jobs and say where to go on, so that a filter that fits little never
makes one long step (O6).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from leasemill.kernel.commands import (
    AlreadySucceeded,
    Cancel,
    Cancelled,
    CancelOutcome,
    JobFilter,
    Missing,
    Operated,
    Pause,
    Prune,
    Purge,
    Redrive,
    Resume,
    SetPolicy,
)
from leasemill.kernel.decide import Decision
from leasemill.kernel.events import (
    ExecutionDone,
    JobCancelled,
    JobPurged,
    JobRedriven,
    JobsPruned,
    QueuePaused,
    QueuePolicySet,
    QueueResumed,
)
from leasemill.kernel.model import NEVER, ExecutionStatus, Job, JobState, Verb
from leasemill.kernel.state import State

JOBS_LOOKED_AT: Final = 10_000
REDRIVEN_STATES: Final = frozenset({JobState.FAILED, JobState.DEAD})
KEPT_STATES: Final = REDRIVEN_STATES | {JobState.CANCELLED}
ENDED_STATES: Final = KEPT_STATES | {JobState.SUCCEEDED}


def cancel(state: State, job_id: str, command: Cancel, now: int) -> Decision[CancelOutcome]:
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
        # X5: after COMMITTED a job can only succeed
        note = f"cancelled by {command.by} after it had committed: {command.reason}"
        done = ExecutionDone(job_id, execution.token, now, Verb.CANCEL, None, note)
        return (done, cancelled), Cancelled(job_id, JobState.SUCCEEDED)
    return (cancelled,), Cancelled(job_id, JobState.CANCELLED)


def redrive(state: State, command: Redrive, now: int) -> Decision[Operated]:
    jobs, after = fitting(state, command.filter, redriven_states(command), command.limit, command.after)
    events = tuple(JobRedriven(job.spec.id, now, command.by, command.reason) for job in jobs)
    return events, Operated(tuple(job.spec.id for job in jobs), after)


def redriven_states(command: Redrive) -> frozenset[JobState]:
    return KEPT_STATES if command.include_cancelled else REDRIVEN_STATES


def purge(state: State, command: Purge, now: int) -> Decision[Operated]:
    jobs, after = fitting(state, command.filter, ENDED_STATES, command.limit, command.after)
    events = tuple(JobPurged(job.spec.id, now, command.by, command.reason) for job in jobs)
    return events, Operated(tuple(job.spec.id for job in jobs), after)


def pause(state: State, command: Pause, now: int) -> Decision[None]:
    queue = state.queues.get(command.queue)
    if queue is not None and queue.is_paused:
        return (), None
    return (QueuePaused(command.queue, now, command.by, command.reason),), None


def resume(state: State, command: Resume, now: int) -> Decision[None]:
    queue = state.queues.get(command.queue)
    if queue is None or not queue.is_paused:
        return (), None
    return (QueueResumed(command.queue, now, command.by, command.reason),), None


def set_policy(state: State, command: SetPolicy, now: int) -> Decision[None]:
    queue = state.queues.get(command.queue)
    if queue is not None and queue.policy == command.policy:
        return (), None
    return (QueuePolicySet(command.queue, now, command.by, command.reason, command.policy),), None


def prune(state: State, command: Prune, now: int) -> Decision[int]:
    """O7: what retention forgets: the oldest successes, by age and by number."""
    surplus = max(0, len(state.finished) - command.keep)
    jobs = state.finished.first(min(command.limit, surplus), NEVER)
    if len(jobs) < command.limit:
        jobs = max(jobs, state.finished.first(command.limit, command.before - 1), key=len)
    if not jobs:
        return (), 0
    return (JobsPruned(tuple(job.spec.id for job in jobs), now),), len(jobs)


def fits(job: Job, wanted: JobFilter) -> bool:
    spec = job.spec
    return (
        (wanted.job_ids is None or spec.id in wanted.job_ids)
        and (wanted.queue is None or spec.queue == wanted.queue)
        and (wanted.kind is None or spec.kind == wanted.kind)
        and (wanted.lane is None or spec.lane == wanted.lane)
        and (wanted.states is None or job.state in wanted.states)
        and (wanted.updated_before is None or job.updated_at < wanted.updated_before)
        and (wanted.updated_after is None or job.updated_at >= wanted.updated_after)
        and (wanted.error_contains is None or wanted.error_contains in (last_error(job) or ""))
    )


def last_error(job: Job) -> str | None:
    return next((execution.error for execution in reversed(job.executions) if execution.error is not None), None)


def fitting(
    state: State,
    wanted: JobFilter,
    states: frozenset[JobState] | None,
    limit: int,
    after: int,
    *,
    newest_first: bool = False,
) -> tuple[list[Job], int | None]:
    """At most `limit` jobs that fit, and where to go on."""
    found: list[Job] = []
    candidates = _candidates(state, wanted, states, after, newest_first)
    for looked_at, job in enumerate(islice(candidates, JOBS_LOOKED_AT), 1):
        if (states is None or job.state in states) and fits(job, wanted):
            found.append(job)
        if len(found) == limit or looked_at == JOBS_LOOKED_AT:
            return found, job.seq
    return found, None


def _candidates(
    state: State, wanted: JobFilter, states: frozenset[JobState] | None, after: int, newest_first: bool
) -> Iterator[Job]:
    if wanted.job_ids is not None:
        known = (state.jobs.get(job_id) for job_id in dict.fromkeys(wanted.job_ids))
        there = sorted((job for job in known if job is not None), key=lambda job: job.seq, reverse=newest_first)
        return (job for job in there if is_further(job.seq, after, newest_first))
    narrowed = states if wanted.states is None else wanted.states
    order = state.kept if narrowed is not None and narrowed <= KEPT_STATES else state.listing
    if newest_first:
        return order.before(after or state.seq + 1)
    return order.after(after)


def is_further(seq: int, after: int, newest_first: bool) -> bool:
    """Whether a reading that has come as far as `after` (0: it begins) still has this job before it."""
    return after == 0 or (seq < after if newest_first else seq > after)
