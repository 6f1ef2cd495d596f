"""Granting a lease: what claim and acquire share."""

from __future__ import annotations

from msgspec import Struct

from leasemill.kernel.events import LeaseGranted
from leasemill.kernel.model import EXECUTIONS_KEPT, NEVER, Execution, Job, JobSpec, Terms
from leasemill.kernel.state import LEASED, READY, State, leave_ready, move
from leasemill.kernel.transitions.executions import does_not_follow, hold, job_of

__all__ = ["Lease"]


class Lease(Struct, frozen=True):
    """A lease: the job, the proof that the claimant holds it, and until when."""

    job: JobSpec
    token: str
    attempt: int
    fence: int
    worker: str
    leased_at: int
    expires_at: int
    terms: Terms
    retries: int
    expirations: int
    created_at: int


def has_had(job: Job, token: str) -> bool:
    """I2: a repeat that arrives after its lease ended does not make the old token good."""
    return any(execution.token == token for execution in job.executions)


def grant(
    job: Job, token: str, worker: str, request_id: str | None, fence: int, terms: Terms, now: int
) -> LeaseGranted:
    return LeaseGranted(
        job.spec.id, job.attempt + 1, fence, token, worker, request_id, now, expires_at(terms, now), terms
    )


def expires_at(terms: Terms, now: int) -> int:
    """L1: when a lease granted or extended now ends."""
    return NEVER if terms.lease_ttl_us == NEVER else now + terms.lease_ttl_us


def lease(job: Job, granted: LeaseGranted | Execution, leased_at: int) -> Lease:
    """The lease of a grant that is not applied yet, or of an execution that is live."""
    return Lease(
        job.spec,
        granted.token,
        granted.attempt,
        granted.fence,
        granted.worker,
        leased_at,
        granted.expires_at,
        granted.terms,
        job.retries,
        job.expirations,
        job.created_at,
    )


def apply(state: State, event: LeaseGranted) -> None:
    job = job_of(state, event)
    if job.state is not READY or event.attempt != job.attempt + 1:
        does_not_follow(event, f"the job is {job.state} after attempt {job.attempt}")
    if event.fence <= state.fence:
        does_not_follow(event, f"the fence is at {state.fence}")  # I3
    if job.spec.lane is not None and state.lanes[job.spec.queue, job.spec.lane].head is not job:
        does_not_follow(event, "another job is at the head of its lane")  # N1
    execution = Execution(
        job.spec.id,
        event.attempt,
        event.fence,
        event.token,
        event.worker,
        event.request_id,
        event.at,
        event.expires_at,
        event.terms,
    )
    executions = job.executions
    if len(executions) >= EXECUTIONS_KEPT:
        executions = (executions[0], *executions[2:])
    job.executions = (*executions, execution)
    job.attempt = event.attempt
    state.fence = event.fence
    hold(state, execution)
    move(state, job, LEASED, event.at)
    leave_ready(state, job)
