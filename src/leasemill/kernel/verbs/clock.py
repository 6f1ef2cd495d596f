"""A folder's clock is set: leases keep the time they have left, what waits is due when it would have been. Rule W17.

No command leads here: the store decides it, after a boot or when it is asked to. A time on record that is later than
the clock is now was written while the clock was ahead, or is a time to come that was computed before: the step is taken
off the first and not off the second. What must never happen: a job that was due waits for as long as the clock was
ahead, one that was given a time of day is due before it, a rate grants more than it allows, or a lease ends early or
lives again.
"""

from __future__ import annotations

from msgspec.structs import replace

from leasemill.errors import Broken
from leasemill.kernel.events import ClockSet
from leasemill.kernel.index.limit_index import cut
from leasemill.kernel.index.taken_keys import Key
from leasemill.kernel.model import NEVER, Execution, Job, JobGroup
from leasemill.kernel.state import READY, State, due_at, finished_at, postpone
from leasemill.kernel.transitions.unique import is_replaced, is_untouched, kept_until, taker_of
from leasemill.kernel.verbs.limits import move_tat


def apply(state: State, event: ClockSet) -> None:
    """Set back, times that the clock wrote while it was ahead are moved with it. Set forward, time has passed: only the
    holders of leases were not there to notice."""
    step_us = event.at - event.from_at
    if step_us == 0:
        raise Broken("ClockSet does not follow from what came before: the clock stays as it was")
    for execution in state.leases.first(len(state.leases), NEVER):
        execution.expires_at += step_us
    state.leases.rekey(_expires_at)
    if step_us > 0:
        return
    # What the listing reads may be a copy: those that change are taken by their ids, and given back one by one, so that
    # a state that keeps most jobs out of memory has few of them there at a time.
    for read in state.listing.after(0):
        if read.updated_at > event.at:
            job = state.jobs[read.spec.id]
            _move_job(state, job, event.at, step_us)
            state.give_back(job)
    state.finished.rekey(finished_at)
    for group in state.groups.values():
        _move_group(group, event.at, step_us)
    state.over.rekey(_over_at)
    _move_keys(state, event.at, step_us)
    _move_rates(state, event.at, step_us)


def _expires_at(execution: Execution) -> int:
    return execution.expires_at


def _over_at(group: JobGroup) -> int:
    return group.ended_at or 0


def _moved(time: int, at: int, step_us: int) -> int:
    return time + step_us if time > at else time


def _move_job(state: State, job: Job, at: int, step_us: int) -> None:
    """A job that was written by the clock that was ahead. One that was written before it is due as it always was."""
    is_due_as_enqueued = job.available_at == due_at(job.spec, job.created_at)
    is_timed, was_ahead = is_replaced(job.spec), job.created_at > at
    job.created_at = _moved(job.created_at, at, step_us)  # U3, U8: keys and debounced jobs count from it
    job.updated_at = max(job.created_at, job.updated_at + step_us)
    for execution in job.executions:
        _move_run(execution, at, step_us)
    available_at = _moved(job.available_at, at, step_us)  # F1: a retry counts from the failure
    if is_timed and is_untouched(job):  # U8, U10: the store computed when it is due, and that is its run_at
        available_at = max(job.created_at, available_at)
        job.spec = replace(job.spec, run_at=available_at)
    elif is_timed and was_ahead:
        job.spec = replace(job.spec, run_at=_moved(job.spec.run_at or 0, at, step_us))
    elif is_due_as_enqueued:
        available_at = due_at(job.spec, job.created_at)  # E3: a delay counts from the enqueue, and a named time stays
    if job.state is READY and job.spec.offset is None:
        postpone(state, job, available_at, at)
    else:
        job.available_at = available_at  # C3: one that is held is due then if it is released, or expires


def _move_run(execution: Execution, at: int, step_us: int) -> None:
    execution.leased_at = _moved(execution.leased_at, at, step_us)
    if execution.started_at is not None:
        execution.started_at = _moved(execution.started_at, at, step_us)
    if execution.committed_at is not None:
        execution.committed_at = _moved(execution.committed_at, at, step_us)
    if execution.finished_at is not None:
        execution.finished_at = _moved(execution.finished_at, at, step_us)  # O7: it is forgotten in time
    if execution.retry_at is not None:
        execution.retry_at = _moved(execution.retry_at, at, step_us)


def _move_group(group: JobGroup, at: int, step_us: int) -> None:
    group.created_at = _moved(group.created_at, at, step_us)
    if group.sealed_at is not None:
        group.sealed_at = _moved(group.sealed_at, at, step_us)
    if group.ended_at is not None:
        group.ended_at = _moved(group.ended_at, at, step_us)
    if group.succeeded_at is not None:
        group.succeeded_at = _moved(group.succeeded_at, at, step_us)


def _move_keys(state: State, at: int, step_us: int) -> None:
    """U3: a key is kept for as long as was asked for. Of one whose job is forgotten it is not known when it was taken:
    it is free early rather than a year late."""
    for key, taken in list(state.keys.items()):
        if taken.until:
            job = taker_of(state, key, taken)
            until = _moved(taken.until, at, step_us) if job is None else kept_until(job)
            state.keys.put(key, Key(taken.job_id, until, taken.queue))
    kept = {(queue, key) for _, queue, key in state.kept_keys}
    state.kept_keys = sorted(
        (one.until, queue, key) for queue, key in kept if (one := state.keys.get(queue, key)) is not None
    )


def _move_rates(state: State, at: int, step_us: int) -> None:
    """T10: what a rate granted while the clock was ahead counts for as long as it would have. What it granted before
    cannot reach further than a whole burst from now: of that nothing is taken off."""
    for name, limit in list(state.limits.items()):
        for key, tally in list(limit.tallies.items()):
            if tally.tat > at:
                move_tat(state, name, key, max(tally.tat + step_us, cut(limit.terms, tally.tat, at)))
                tally.reopen()
