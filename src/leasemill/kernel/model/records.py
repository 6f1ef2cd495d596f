"""The records: jobs with their executions and refusals, groups, limits, what operators did."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from leasemill.kernel.model.spec import ChainedJob, JobSpec, LimitTerms, Terms
from leasemill.kernel.model.states import LIVE, AbortReason, ExecutionStatus, JobState, LossReason
from leasemill.kernel.model.verb import EndingVerb, ReportVerb, Verb

NEVER: Final = 2**63 - 1
"""The `expires_at` of a lease that does not expire: of acquire queues, by default."""

EXECUTIONS_KEPT: Final = 100
"""Executions kept per job: the first and the latest others."""

REFUSALS_KEPT: Final = 100
"""Refusals recorded per job; later ones are returned but not recorded."""

ACTIONS_KEPT: Final = 1_000
"""Operator actions kept for the audit trail."""


class KeptFailure(Struct, frozen=True, array_like=True, gc=False):
    """The latest failure reported without giving up the lease, to recognise its repeat."""

    report_id: str
    retries: int


class Execution(Struct, array_like=True, gc=False):
    """The execution that a claim begins: an attempt with its lease."""

    job_id: str
    attempt: int
    fence: int
    token: str
    worker: str
    request_id: str | None
    leased_at: int
    expires_at: int
    terms: Terms
    status: ExecutionStatus = ExecutionStatus.LEASED
    started_at: int | None = None
    committed_at: int | None = None
    finished_at: int | None = None
    reason: AbortReason | None = None
    error: str | None = None
    ended_by: EndingVerb | None = None
    committed_by: Verb | None = None
    is_final: bool = False
    retry_at: int | None = None
    kept_failure: KeptFailure | None = None


class Refusal(Struct, frozen=True, array_like=True, gc=False):
    """A report that came too late, recorded as evidence."""

    verb: ReportVerb
    token: str
    worker: str | None
    attempt: int | None
    current_attempt: int
    reason: LossReason
    at: int


class Cancellation(Struct, frozen=True, array_like=True, gc=False):
    """The record of who cancelled a job, when and why."""

    at: int
    by: str
    reason: str


class Job(Struct, array_like=True, gc=False):
    """A job as it stands: what was asked for, its attempts, and its state, `derived_state` of the rest."""

    spec: JobSpec
    seq: int
    created_at: int
    available_at: int
    updated_at: int
    state: JobState = JobState.READY
    attempt: int = 0
    retries: int = 0
    expirations: int = 0
    executions: tuple[Execution, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    result: bytes | None = None
    is_cancelled: bool = False
    blocks_lane: bool = False
    redriven_attempt: int | None = None
    cancellation: Cancellation | None = None
    """The latest one; a redrive leaves it."""
    replaced: int = 0
    """The number of times its payload was replaced; only the latest is kept (U9)."""


class JobGroup(Struct, array_like=True, gc=False):
    """Jobs that end together: how many there are, how many have ended and how, and what their end enqueues.

    The counts are truth: members may be forgotten before their group. A group in a `parent` counts there as one member
    until it is over, and its callbacks are members of the parent too.
    """

    id: str
    seq: int
    created_at: int
    then: ChainedJob | None = None
    on_end: ChainedJob | None = None
    parent: str | None = None
    sealed_at: int | None = None
    total: int = 0
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0
    ended_at: int | None = None
    """The time at which all members had ended for the first time; a redrive leaves it."""
    succeeded_at: int | None = None
    is_over: bool = False
    """Sealed, and all members have ended: until one is redriven."""
    remembered: int = 0
    """Members, and groups in it, that are not forgotten yet."""

    @property
    def unfinished(self) -> int:
        return self.total - self.succeeded - self.failed - self.dead - self.cancelled


class LimitRecord(Struct, frozen=True, array_like=True, gc=False):
    """The terms of a limit: those that code declared, and those that an operator set, which come first."""

    name: str
    declared: LimitTerms | None = None
    declared_at: int | None = None
    declared_by: str | None = None
    set: LimitTerms | None = None
    set_at: int | None = None
    set_by: str | None = None
    reason: str | None = None


class Action(Struct, frozen=True, array_like=True, gc=False):
    """An action of an operator on one target, or on `count` jobs (O8): the first of them, `others` that came next, as
    far as they are kept, and when: from `first_at` (null: at once) to `at`."""

    at: int
    verb: Verb
    by: str
    target: str
    reason: str
    count: int = 1
    first_at: int | None = None
    others: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        return self.target, *self.others

    @property
    def began_at(self) -> int:
        return self.at if self.first_at is None else self.first_at


def derived_state(job: Job) -> JobState:
    """X2: the job's state as a function of its executions and the operator's marks."""
    last = job.executions[-1] if job.executions else None
    if last is not None and last.status is ExecutionStatus.DONE:
        return JobState.SUCCEEDED
    if job.is_cancelled:
        return JobState.CANCELLED
    if last is None or job.redriven_attempt == job.attempt:
        return JobState.READY
    if last.status in LIVE:
        return JobState.LEASED
    if not last.is_final:
        return JobState.READY
    return JobState.FAILED if last.reason is AbortReason.FAILED else JobState.DEAD
