"""Reading jobs: single jobs, pages of them, the holders of unique keys, and the leases that are held."""

from __future__ import annotations

from heapq import nsmallest

from msgspec import Struct
from msgspec.structs import replace

from leasemill.kernel.command import Command
from leasemill.kernel.model import (
    NEVER,
    Execution,
    Job,
)
from leasemill.kernel.read.filter import JobFilter, fitting
from leasemill.kernel.state import State
from leasemill.kernel.transitions.unique import holder_of

__all__ = [
    "GetJob",
    "GetKey",
    "JobPage",
    "KeyView",
    "LeaseView",
    "ListJobs",
    "ListLeases",
]


class JobPage(Struct, frozen=True):
    """Jobs of one page; `after` continues the reading, None: there is no more."""

    jobs: tuple[Job, ...]
    after: int | None


class KeyView(Struct, frozen=True):
    """The job that holds a unique key of a queue. `kept_until`: it is held until then whatever becomes of the job,
    None: that is over."""

    queue: str
    key: str
    job_id: str
    kept_until: int | None


class GetKey(Command[KeyView | None], frozen=True):
    """None: no job of the queue holds it."""

    queue: str
    key: str


class GetJob(Command[Job | None], frozen=True):
    job_id: str


class ListJobs(Command[JobPage], frozen=True):
    """Jobs in the order of their sequence numbers, or newest first; `after`: the page before, 0: from the start."""

    filter: JobFilter
    limit: int
    after: int = 0
    newest_first: bool = False


def get_job(state: State, query: GetJob, _now: int) -> Job | None:
    job = state.look(query.job_id)
    return None if job is None else copy_of(job)


def get_key(state: State, query: GetKey, now: int) -> KeyView | None:
    holder = holder_of(state, query.queue, query.key, now)
    if holder is None:
        return None
    return KeyView(query.queue, query.key, holder.job_id, holder.until if now < holder.until else None)


def copy_of(job: Job) -> Job:
    return replace(job, executions=tuple(replace(execution) for execution in job.executions))


def list_jobs(state: State, query: ListJobs, _now: int) -> JobPage:
    jobs, after = fitting(state, query.filter, None, query.limit, query.after, newest_first=query.newest_first)
    return JobPage(tuple(copy_of(job) for job in jobs), after)


class LeaseView(Struct, frozen=True):
    """A lease that no report has ended yet; it may have expired. `started_at`: as far as it was reported."""

    job_id: str
    queue: str
    kind: str
    attempt: int
    fence: int
    token: str
    worker: str
    leased_at: int
    expires_at: int
    started_at: int | None


class ListLeases(Command[list[LeaseView]], frozen=True):
    """Timed leases in the order in which they were granted; `after`: the last fence of the page before. `worker`: those
    of this worker alone."""

    limit: int
    after: int = 0
    worker: str | None = None


def list_leases(state: State, query: ListLeases, _now: int) -> list[LeaseView]:
    held = (
        execution
        for execution in state.leases.first(len(state.leases), NEVER)
        if execution.fence > query.after and query.worker in (None, execution.worker)
    )
    return [_lease_view(state, execution) for execution in nsmallest(query.limit, held, key=lambda one: one.fence)]


def _lease_view(state: State, execution: Execution) -> LeaseView:
    spec = state.jobs[execution.job_id].spec
    return LeaseView(
        execution.job_id,
        spec.queue,
        spec.kind,
        execution.attempt,
        execution.fence,
        execution.token,
        execution.worker,
        execution.leased_at,
        execution.expires_at,
        execution.started_at,
    )
