"""purge and prune: ended jobs are forgotten, by an operator (O5) or by retention (O7)."""

from __future__ import annotations

from typing import TypeVar

from leasemill.errors import Broken
from leasemill.kernel.bounds import check_limit, check_range
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import AnyEvent, GroupsPruned, JobPurged, JobsPruned
from leasemill.kernel.index.order import TimeOrder
from leasemill.kernel.model import ENDED_STATES, NEVER, Verb
from leasemill.kernel.read.filter import JobFilter, Operated, check_filter, fitting
from leasemill.kernel.state import LEASED, READY, SUCCEEDED, State, forget
from leasemill.kernel.transitions.actions import check_operator, record_job
from leasemill.kernel.transitions.executions import does_not_follow, job_of
from leasemill.kernel.transitions.lanes import leave_lane
from leasemill.kernel.transitions.unique import leave_key

__all__ = ["Prune", "Purge"]

T = TypeVar("T")


class Purge(Command[Operated], frozen=True):
    """SUCCEEDED, FAILED, DEAD and CANCELLED jobs that fit are forgotten."""

    filter: JobFilter
    by: str
    reason: str
    limit: int
    after: int = 0


def check_purge(command: Purge) -> None:
    check_limit(command)
    check_operator(command)
    check_filter(command.filter)


def decide_purge(state: State, command: Purge, now: int) -> Decision[Operated]:
    jobs, after = fitting(state, command.filter, ENDED_STATES, command.limit, command.after)
    events = tuple(JobPurged(job.spec.id, now, command.by, command.reason) for job in jobs)
    return events, Operated(tuple(job.spec.id for job in jobs), after)


def apply_purged(state: State, event: JobPurged) -> None:
    job = job_of(state, event)
    if job.state in (READY, LEASED):
        does_not_follow(event, f"the job is {job.state}")  # O5
    blocked, job.blocks_lane = job.blocks_lane, False
    if blocked:
        leave_lane(state, job, event.at)
    forget(state, job)
    if job.spec.rules is not None:
        leave_key(state, job, event.at)
    record_job(state, Verb.PURGE, event.job_id, event)


class Prune(Command[int], frozen=True):
    """Retention: forget SUCCEEDED jobs that ended before `before`, and the oldest beyond `keep`; returns how many."""

    before: int
    keep: int
    limit: int


def check_prune(command: Prune) -> None:
    check_limit(command)
    check_range("keep", command.keep, 0, NEVER)


def decide_prune(state: State, command: Prune, now: int) -> Decision[int]:
    """O7: what retention forgets: the oldest successes, by age and by number, and so groups that are over."""
    jobs, groups = _oldest(state.finished, command), _oldest(state.over, command)
    events: list[AnyEvent] = []
    if jobs:
        events.append(JobsPruned(tuple(job.spec.id for job in jobs), now))
    if groups:
        events.append(GroupsPruned(tuple(group.id for group in groups), now))
    return tuple(events), len(jobs)


def _oldest(order: TimeOrder[T], command: Prune) -> list[T]:
    surplus = max(0, len(order) - command.keep)
    found = order.first(min(command.limit, surplus), NEVER)
    if len(found) < command.limit:
        found = max(found, order.first(command.limit, command.before - 1), key=len)
    return found


def apply_pruned(state: State, event: JobsPruned) -> None:
    jobs = [state.look(job_id) for job_id in event.job_ids]
    for job_id, job in zip(event.job_ids, jobs, strict=True):
        if job is None or job.state is not SUCCEEDED:
            raise Broken(f"JobsPruned for job {job_id!r} does not follow from what came before: it has not succeeded")
    for job in jobs:
        assert job is not None
        forget(state, job)
        if job.spec.rules is not None:
            leave_key(state, job, event.at)
