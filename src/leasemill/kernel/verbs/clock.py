"""A folder's clock is set: leases keep the time they have left, what waits is due when it would have been. Rule W17.

No command leads here: the store decides it, after a boot or when it is asked to. What must never happen: a job that was
due waits for as long as the clock was ahead, one that was given a time of day is due before it, or a lease ends early
or lives again.
"""

from __future__ import annotations

from msgspec.structs import replace

from leasemill.errors import Broken
from leasemill.kernel.events import ClockSet
from leasemill.kernel.model import NEVER, Execution, Job
from leasemill.kernel.state import READY, State, postpone
from leasemill.kernel.taken_keys import Key
from leasemill.kernel.unique import is_replaced, kept_until, taker_of
from leasemill.kernel.verbs.limits import move_tat


def apply(state: State, event: ClockSet) -> None:
    """Set back, times that were counted from the clock as it was are moved with it. Set forward, time has passed: only
    the holders of leases were not there to notice."""
    step_us = event.at - event.from_at
    if step_us == 0:
        raise Broken("ClockSet does not follow from what came before: the clock stays as it was")
    for execution in state.leases.first(len(state.leases), NEVER):
        _move_lease(state, execution, step_us)
    if step_us > 0:
        return
    for job in list(state.jobs.values()):
        if job.updated_at > event.at:
            _move_job(state, job, event.at, step_us)
    _move_keys(state, event.at, step_us)
    _move_rates(state, event.at, step_us)


def _move_lease(state: State, execution: Execution, step_us: int) -> None:
    before = execution.expires_at
    execution.expires_at = before + step_us
    state.leases.push(execution.expires_at, execution.fence, execution)
    state.leases.remove(before, execution.fence)


def _move_job(state: State, job: Job, at: int, step_us: int) -> None:
    """A job that was written by the clock that was ahead. One that was written before it is due as it always was."""
    if job.created_at > at:
        job.created_at += step_us  # U3, U8: keys and debounced jobs count from it
    job.updated_at = max(job.created_at, at)
    if job.executions and job.executions[-1].leased_at > at:
        _move_run(job.executions[-1], step_us)
    spec, available_at = job.spec, job.available_at
    if available_at <= at:
        return
    if is_replaced(spec) and spec.run_at is not None:
        job.spec = replace(spec, run_at=spec.run_at + step_us)
    elif spec.run_at == available_at:
        return  # E3: a time that the caller named
    if job.state is READY and spec.offset is None:
        postpone(state, job, available_at + step_us, at)
    else:
        job.available_at = available_at + step_us  # C3: one that is held is due then if it is released, or expires


def _move_run(execution: Execution, step_us: int) -> None:
    """The times of a run that goes on; one that has ended keeps its own, as it was recorded."""
    if execution.finished_at is not None:
        return
    execution.leased_at += step_us
    if execution.started_at is not None:
        execution.started_at += step_us
    if execution.committed_at is not None:
        execution.committed_at += step_us


def _move_keys(state: State, at: int, step_us: int) -> None:
    """U3: a key is kept for as long as was asked for. Of one whose job is forgotten it is not known when it was taken:
    it is free early rather than a year late."""
    for key, taken in list(state.keys.items()):
        if taken.until > at:
            job = taker_of(state, key, taken)
            until = taken.until + step_us if job is None else kept_until(job)
            state.keys.put(key, Key(taken.job_id, until, taken.queue))
    kept = {(queue, key) for _, queue, key in state.kept_keys}
    state.kept_keys = sorted(
        (one.until, queue, key) for queue, key in kept if (one := state.keys.get(queue, key)) is not None
    )


def _move_rates(state: State, at: int, step_us: int) -> None:
    """T10: what a rate has granted counts for as long as it would have."""
    for name, limit in list(state.limits.items()):
        for key, tally in list(limit.tallies.items()):
            if tally.tat > at:
                move_tat(state, name, key, max(1, tally.tat + step_us))
                tally.reopen()
