"""The nouns of the contract: jobs, executions, policies, and the records of what happened to them.

Pure data. Instants are integer microseconds since the Unix epoch, durations integer microseconds whose names
end in `_us`; the kernel never asks what time it is. `Job` and `Execution` change only when an event is applied.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000

NEVER: Final = 2**63 - 1
"""The `expires_at` of a lease that does not expire: of acquire queues, by default."""

TIMEOUT_LEASES: Final = 3
"""The default timeout, in leases."""

EXECUTIONS_KEPT: Final = 100
"""Executions kept per job: the first and the latest others."""

REFUSALS_KEPT: Final = 100
"""Refusals recorded per job; later ones are returned but not recorded."""

ACTIONS_KEPT: Final = 1_000
"""Operator actions kept for the audit trail."""


QUEUE_LIMIT: Final = "queue:"
"""With the queue's name, the name of the queue's own limit."""


class JobState(StrEnum):
    """READY jobs wait (for a worker, a time or a retry), LEASED jobs are held by a worker, the others have ended."""

    READY = "ready"
    LEASED = "leased"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"


REDRIVEN_STATES: Final = frozenset({JobState.FAILED, JobState.DEAD})
UNSUCCESSFUL_STATES: Final = REDRIVEN_STATES | {JobState.CANCELLED}
ENDED_STATES: Final = UNSUCCESSFUL_STATES | {JobState.SUCCEEDED}
UNENDED_STATES: Final = frozenset({JobState.READY, JobState.LEASED})


class ExecutionStatus(StrEnum):
    LEASED = "leased"
    STARTED = "started"
    COMMITTED = "committed"
    DONE = "done"
    ABORTED = "aborted"


class AbortReason(StrEnum):
    EXPIRED = "expired"
    FAILED = "failed"
    RELEASED = "released"
    CANCELLED = "cancelled"
    DIED = "died"


class Verb(StrEnum):
    ENQUEUE = "enqueue"
    CLAIM = "claim"
    START = "start"
    EXTEND = "extend"
    COMMIT = "commit"
    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    EXPIRE = "expire"
    DEATH = "death"
    ACQUIRE = "acquire"
    CANCEL = "cancel"
    REDRIVE = "redrive"
    PAUSE = "pause"
    RESUME = "resume"
    SET_POLICY = "set_policy"
    PURGE = "purge"
    PRUNE = "prune"
    SET_LIMIT = "set_limit"
    CLEAR_LIMIT = "clear_limit"
    DECLARE_LIMIT = "declare_limit"
    SET_SCHEDULE = "set_schedule"
    REMOVE_SCHEDULE = "remove_schedule"
    PAUSE_SCHEDULE = "pause_schedule"
    RESUME_SCHEDULE = "resume_schedule"
    FIRE = "fire"
    BACKFILL = "backfill"
    SEAL_GROUP = "seal_group"
    QUIET_WORKER = "quiet_worker"
    RESUME_WORKER = "resume_worker"
    STOP_WORKER = "stop_worker"


class OnFailure(StrEnum):
    """What a lane does when its head ends FAILED or is quarantined."""

    CONTINUE = "continue"
    BLOCK = "block"


class QueueMode(StrEnum):
    """How a queue's jobs are taken; fixed by its first job."""

    CLAIM = "claim"
    ACQUIRE = "acquire"


class LossReason(StrEnum):
    """Why a lease is not the caller's any more."""

    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    ENDED = "ended"
    CANCELLED = "cancelled"
    DIED = "died"
    UNKNOWN = "unknown"


class Policy(Struct, frozen=True, array_like=True, gc=False):
    """What a job, a queue or a kind asks for; `None` leaves the choice to the next in precedence."""

    max_retries: int | None = None
    lease_ttl_us: int | None = None
    timeout_us: int | None = None
    max_expirations: int | None = None
    backoff_base_us: int | None = None
    backoff_cap_us: int | None = None
    on_failure: OnFailure | None = None


class Terms(Struct, frozen=True, array_like=True, gc=False):
    """The policy of one execution, settled at claim: every field has a value."""

    max_retries: int = 3
    lease_ttl_us: int = 30 * SECOND
    timeout_us: int = TIMEOUT_LEASES * lease_ttl_us
    max_expirations: int = 5
    backoff_base_us: int = 500 * MILLISECOND
    backoff_cap_us: int = 30 * SECOND
    on_failure: OnFailure = OnFailure.CONTINUE


class UniqueUntil(StrEnum):
    """How long a unique job holds its key."""

    ENDED = "ended"
    STARTED = "started"


class UniqueKey(Struct, frozen=True, array_like=True, gc=False):
    """While a job holds this key, no other job is made for it (U1).

    `keep_us`: it is held at least this long from the enqueue, whatever happens to the job. `at_most_us`: the job is
    debounced: until it is claimed, an enqueue with its key replaces its payload and restarts its delay, which ends no
    later than this after the first enqueue. `is_trailing`: a call while the key is kept makes one more job, due when
    that time ends.
    """

    key: str
    until: UniqueUntil = UniqueUntil.ENDED
    keep_us: int = 0
    at_most_us: int | None = None
    is_trailing: bool = False


class LimitUse(Struct, frozen=True, array_like=True, gc=False):
    """A limit that a job is under: its name and, if it counts for each key, the key."""

    name: str
    key: str | None = None


class LimitTerms(Struct, frozen=True, array_like=True, gc=False):
    """`places`: the most leases at a time; `rate`: the most grants per `per_us`, `burst` at once. None: unlimited."""

    places: int | None = None
    rate: int | None = None
    per_us: int | None = None
    burst: int | None = None


class LimitRecord(Struct, frozen=True, array_like=True, gc=False):
    """What is on record about a limit: what code declared, and what an operator set, which comes first."""

    name: str
    declared: LimitTerms | None = None
    declared_at: int | None = None
    declared_by: str | None = None
    set: LimitTerms | None = None
    set_at: int | None = None
    set_by: str | None = None
    reason: str | None = None


class ChainedJob(Struct, frozen=True, array_like=True, gc=False):
    """A job that the success of the one before it enqueues.

    `result_name`: the argument that is the result of the job before; the payload, a JSON object, does not have it.
    """

    queue: str
    kind: str
    payload: bytes = b"{}"
    lane: str | None = None
    priority: int = 0
    delay_us: int = 0
    policy: Policy | None = None
    headers: dict[str, str] | None = None
    unique: UniqueKey | None = None
    limits: tuple[LimitUse, ...] = ()
    result_name: str | None = None


class Rules(Struct, frozen=True, array_like=True, gc=False):
    """What binds a job to others; most jobs have none."""

    unique: UniqueKey | None = None
    limits: tuple[LimitUse, ...] = ()
    group: str | None = None
    chain: tuple[ChainedJob, ...] = ()


class JobSpec(Struct, frozen=True, array_like=True, gc=False):
    """What a caller asks for. Headers travel with a job and are not its content.

    Written once; but a job that is replaced before its first claim (U8, U10) has the latest payload and headers, and
    its `run_at` says when it is due.
    """

    id: str
    queue: str
    kind: str
    payload: bytes = b"{}"
    lane: str | None = None
    priority: int = 0
    run_at: int | None = None
    delay_us: int = 0
    policy: Policy | None = None
    offset: int | None = None
    headers: dict[str, str] | None = None
    rules: Rules | None = None


class KeptFailure(Struct, frozen=True, array_like=True, gc=False):
    """The latest failure reported without giving up the lease, to recognise its repeat."""

    report_id: str
    retries: int


class Execution(Struct, array_like=True, gc=False):
    """One claim: one attempt, one lease."""

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
    ended_by: Verb | None = None
    committed_by: Verb | None = None
    is_final: bool = False
    retry_at: int | None = None
    kept_failure: KeptFailure | None = None


class Refusal(Struct, frozen=True, array_like=True, gc=False):
    """A report that came too late, recorded as evidence."""

    verb: Verb
    token: str
    worker: str | None
    attempt: int | None
    current_attempt: int
    reason: LossReason
    at: int


class Cancellation(Struct, frozen=True, array_like=True, gc=False):
    """Who cancelled a job, when and why."""

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
    """How often its payload was replaced; only the latest is kept (U9)."""


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
    """When all members had ended for the first time; a redrive leaves it."""
    succeeded_at: int | None = None
    is_over: bool = False
    """Sealed, and all members have ended: until one is redriven."""
    remembered: int = 0
    """Members, and groups in it, that are not forgotten yet."""

    @property
    def unfinished(self) -> int:
        return self.total - self.succeeded - self.failed - self.dead - self.cancelled


class Action(Struct, frozen=True, array_like=True, gc=False):
    """One thing an operator did, to one target, or to `count` jobs (O8): the first of them, `others` that came next, as
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


LIVE: Final = frozenset({ExecutionStatus.LEASED, ExecutionStatus.STARTED, ExecutionStatus.COMMITTED})


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
