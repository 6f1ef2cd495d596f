"""redrive: an operator makes failed jobs READY again. Rules O2 and U4."""

from __future__ import annotations

from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_limit
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import JobRedriven
from leasemill.kernel.model import REDRIVEN_STATES, UNSUCCESSFUL_STATES, Job, JobState, Verb
from leasemill.kernel.read.filter import HeldBack, JobFilter, Operated, check_filter, fitting
from leasemill.kernel.state import CANCELLED, DEAD, FAILED, READY, State, make_ready, move, renumber
from leasemill.kernel.transitions.actions import check_operator, record_job
from leasemill.kernel.transitions.executions import does_not_follow, job_of
from leasemill.kernel.transitions.groups import member_reopened
from leasemill.kernel.transitions.lanes import join_lane, unfail_offset
from leasemill.kernel.transitions.unique import QueueKey, holder_of, key_of, retakes, take, unique_of

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
    check_filter(command.filter)
    if command.include_cancelled and command.filter.job_ids is None:
        raise Invalid("cancelled jobs are redriven by id only: name them")  # O2


def decide(state: State, command: Redrive, now: int) -> Decision[Operated]:
    jobs, after = fitting(state, command.filter, redriven_states(command), command.limit, command.after)
    redriven: list[Job] = []
    held_back: list[HeldBack] = []
    taken: dict[QueueKey, str] = {}
    for job in jobs:
        holder_id = _other_holder(state, job, taken, now)
        if holder_id is None:
            redriven.append(job)
        else:
            held_back.append(HeldBack(job.spec.id, holder_id))
    events = tuple(JobRedriven(job.spec.id, now, command.by, command.reason) for job in redriven)
    return events, Operated(tuple(job.spec.id for job in redriven), after, tuple(held_back))


def _other_holder(state: State, job: Job, taken: dict[QueueKey, str], now: int) -> str | None:
    """U4: who holds the key that the job would take. `taken`: by those redriven before it."""
    key = key_of(job.spec)
    if key is None or not retakes(job):
        return None
    holder = holder_of(state, *key, now)
    holder_id = taken.get(key, None if holder is None else holder.job_id)
    if holder_id is not None and holder_id != job.spec.id:
        return holder_id
    taken[key] = job.spec.id
    return None


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
    unique = unique_of(job.spec)
    if unique is not None and retakes(job):
        take(state, job, unique, event.at)
    if job.blocks_lane:
        job.blocks_lane = False
        make_ready(state, job, event.at)
    else:
        renumber(state, job)
        if job.spec.lane is None:
            make_ready(state, job, event.at)
        else:
            join_lane(state, job, event.at)
    record_job(state, Verb.REDRIVE, event.job_id, event)
