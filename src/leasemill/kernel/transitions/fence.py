"""The fence: whether a report comes from the holder of the job's lease, and the refusal of one that does not."""

from __future__ import annotations

from msgspec import Struct

from leasemill.kernel.command import Decision
from leasemill.kernel.events import AnyEvent, ReportRefused
from leasemill.kernel.model import (
    LIVE,
    REFUSALS_KEPT,
    Execution,
    ExecutionStatus,
    Job,
    LossReason,
    Refusal,
    ReportVerb,
    Verb,
)
from leasemill.kernel.state import State
from leasemill.kernel.transitions.executions import expire_one, job_of
from leasemill.kernel.transitions.formats import require_verb

__all__ = ["Lost"]


class Lost(Struct, frozen=True):
    """The report is refused: the lease is not the caller's (any more)."""

    job_id: str
    verb: Verb
    reason: LossReason
    attempt: int | None
    current_attempt: int


def execution_of(job: Job | None, token: str) -> Execution | None:
    if job is None:
        return None
    for execution in reversed(job.executions):
        if execution.token == token:
            return execution
    return None


def held(execution: Execution | None, now: int) -> bool:
    """L1 and L2: the token is the job's current one, and time has not revoked it."""
    return execution is not None and execution.status in LIVE and now < execution.expires_at


def held_or_committed(execution: Execution | None, now: int) -> bool:
    """L6: what a token has committed counts whatever the time."""
    return execution is not None and (
        execution.status is ExecutionStatus.COMMITTED or (execution.status in LIVE and now < execution.expires_at)
    )


def refuse(
    job: Job | None, job_id: str, execution: Execution | None, token: str, verb: ReportVerb, now: int
) -> Decision[Lost]:
    """L4: the report does nothing; L5: the refusal is recorded, once for each token and verb."""
    if job is None:
        return (), Lost(job_id, verb, LossReason.UNKNOWN, None, 0)
    events: list[AnyEvent] = []
    if execution is not None and execution.status in LIVE:
        events.append(expire_one(job, execution, now)[0])  # L3: once refused for its age, never revived
    reason = loss_reason(job, execution)
    attempt = None if execution is None else execution.attempt
    worker = None if execution is None else execution.worker
    if len(job.refusals) < REFUSALS_KEPT and not any(
        refusal.token == token and refusal.verb is verb for refusal in job.refusals
    ):
        events.append(ReportRefused(job_id, token, verb, worker, attempt, job.attempt, reason, now))
    return tuple(events), Lost(job_id, verb, reason, attempt, job.attempt)


def loss_reason(job: Job, execution: Execution | None) -> LossReason:
    if execution is None:
        return LossReason.UNKNOWN
    if execution.status in LIVE or execution.ended_by is Verb.EXPIRE:
        return LossReason.EXPIRED if execution.attempt == job.attempt else LossReason.SUPERSEDED
    if execution.ended_by is Verb.DEATH:
        return LossReason.DIED
    if execution.ended_by is Verb.CANCEL:
        return LossReason.CANCELLED
    return LossReason.ENDED


def apply(state: State, event: ReportRefused) -> None:
    job = job_of(state, event)
    require_verb(state, event.verb)
    refusal = Refusal(
        event.verb, event.token, event.worker, event.attempt, event.current_attempt, event.reason, event.at
    )
    job.refusals = (*job.refusals, refusal)
