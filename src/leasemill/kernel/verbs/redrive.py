"""redrive: an operator makes failed jobs READY again. Rule O2."""

from __future__ import annotations

from leasemill.errors import Invalid
from leasemill.kernel.actions import check_operator, record
from leasemill.kernel.bounds import check_limit
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import JobRedriven
from leasemill.kernel.filter import JobFilter, Operated, fitting
from leasemill.kernel.groups import member_reopened
from leasemill.kernel.lanes import join_lane, unfail_offset
from leasemill.kernel.lookup import does_not_follow, job_of
from leasemill.kernel.model import REDRIVEN_STATES, UNSUCCESSFUL_STATES, JobState, Verb
from leasemill.kernel.state import CANCELLED, DEAD, FAILED, READY, State, make_ready, move, renumber

__all__ = ["Redrive"]


class Redrive(Command[Operated], frozen=True):
    """FAILED and DEAD jobs that fit become READY again; CANCELLED ones with `include_cancelled`, and by id alone."""

    filter: JobFilter
    by: str
    reason: str
    limit: int
    after: int = 0
    include_cancelled: bool = False


def check(command: Redrive) -> None:
    check_limit(command)
    check_operator(command)
    if command.include_cancelled and command.filter.job_ids is None:
        raise Invalid("cancelled jobs are redriven by id only: name them")  # O2


def decide(state: State, command: Redrive, now: int) -> Decision[Operated]:
    jobs, after = fitting(state, command.filter, redriven_states(command), command.limit, command.after)
    events = tuple(JobRedriven(job.spec.id, now, command.by, command.reason) for job in jobs)
    return events, Operated(tuple(job.spec.id for job in jobs), after)


def redriven_states(command: Redrive) -> frozenset[JobState]:
    return UNSUCCESSFUL_STATES if command.include_cancelled else REDRIVEN_STATES


def apply(state: State, event: JobRedriven) -> None:
    job = job_of(state, event)
    if job.state not in (FAILED, DEAD, CANCELLED):
        does_not_follow(event, f"the job is {job.state}")
    if job.spec.rules is not None:
        member_reopened(state, job)
    state.unsuccessful.discard(job.seq)
    job.retries = 0
    job.expirations = 0
    job.is_cancelled = False
    job.redriven_attempt = job.attempt
    job.available_at = event.at
    move(state, job, READY, event.at)
    unfail_offset(state, job)
    if job.blocks_lane:
        job.blocks_lane = False
        make_ready(state, job, event.at)
    else:
        renumber(state, job)
        if job.spec.lane is None:
            make_ready(state, job, event.at)
        else:
            join_lane(state, job, event.at)
    record(state, Verb.REDRIVE, event.job_id, event)
