"""What can be asked of the kernel, and the answers. The names are the contract's verbs.

A command carries its own randomness (tokens, jitter, request ids), drawn by whoever sends it; repeated as it is
after a lost reply, it gives the same answer. Commands on many items answer one outcome for each, in order; an
expected alternative (a duplicate, a lost lease) is an outcome, not an exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from msgspec import Struct

from leasemill.kernel.model import (
    Action,
    Job,
    JobSpec,
    JobState,
    LossReason,
    Policy,
    QueueMode,
    Terms,
    Verb,
)

AnswerT = TypeVar("AnswerT", covariant=True)


class Command(Struct, Generic[AnswerT], frozen=True):
    """Something a store is asked to do or to tell; `AnswerT` is what it answers."""


# Outcomes ------------------------------------------------------------------------------------------------------


class Enqueued(Struct, frozen=True):
    job_id: str


class Duplicate(Struct, frozen=True):
    """The id is known with the same content: nothing was changed."""

    job_id: str


class Conflict(Struct, frozen=True):
    """The id is known with other content: refused."""

    job_id: str


class Lease(Struct, frozen=True):
    """What a claimant holds: the job, the proof that it is theirs, and until when."""

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


class Started(Struct, frozen=True):
    job_id: str


class Extended(Struct, frozen=True):
    job_id: str
    expires_at: int


class Committed(Struct, frozen=True):
    job_id: str
    followup_ids: tuple[str, ...]
    is_repeat: bool = False


class LaneHint(Struct, frozen=True):
    """The job that is now at the head of the lane."""

    job_id: str
    offset: int | None


class Acked(Struct, frozen=True):
    job_id: str
    next_in_lane: LaneHint | None = None
    is_repeat: bool = False


class Nacked(Struct, frozen=True):
    """READY: to be retried at `available_at`; LEASED: retried under the kept lease; FAILED: for good; SUCCEEDED: the
    job had committed, so the failure is only a note."""

    job_id: str
    state: JobState
    retries: int
    available_at: int | None = None
    next_in_lane: LaneHint | None = None
    is_repeat: bool = False


class Released(Struct, frozen=True):
    """READY again, or SUCCEEDED if the job had committed."""

    job_id: str
    state: JobState
    is_repeat: bool = False


class Lost(Struct, frozen=True):
    """The report is refused: the lease is not the caller's (any more)."""

    job_id: str
    verb: Verb
    reason: LossReason
    attempt: int | None
    current_attempt: int


class Expiration(Struct, frozen=True):
    """One lease that time took; `state` is the job's afterwards."""

    job_id: str
    worker: str
    attempt: int
    stuck_us: int
    state: JobState


class Acquired(Struct, frozen=True):
    lease: Lease


class AlreadyAcquired(Struct, frozen=True):
    lease: Lease


class Backlogged(Struct, frozen=True):
    """Another job of the lane is in flight; this one waits behind it."""

    job_id: str


class AlreadyFinished(Struct, frozen=True):
    """The offset ended before; `state` tells how."""

    state: JobState


class OutOfOrder(Struct, frozen=True):
    """Nothing is in flight and the lane's next is another job."""

    expected: LaneHint


class Cancelled(Struct, frozen=True):
    """CANCELLED, or SUCCEEDED if the job had committed."""

    job_id: str
    state: JobState
    is_repeat: bool = False


class Missing(Struct, frozen=True):
    job_id: str


class AlreadySucceeded(Struct, frozen=True):
    job_id: str


class JobPage(Struct, frozen=True):
    """Jobs of one page; `after` continues the reading, None: there is no more."""

    jobs: tuple[Job, ...]
    after: int | None


class Operated(Struct, frozen=True):
    """The jobs an operator's command changed; `after` continues it, None: all were looked at."""

    job_ids: tuple[str, ...]
    after: int | None


class QueueView(Struct, frozen=True):
    name: str
    mode: QueueMode | None
    is_paused: bool
    policy: Policy | None
    counts: dict[JobState, int]
    oldest_available_at: int | None


class LaneView(Struct, frozen=True):
    queue: str
    lane: str
    head: Job | None
    is_blocked: bool
    waiting: int
    finished: tuple[tuple[int, int], ...]
    failed: tuple[tuple[int, int], ...]


class LanePage(Struct, frozen=True):
    lanes: tuple[LaneView, ...]
    after: int | None


class Totals(Struct, frozen=True):
    """What the store holds now, over all queues."""

    counts: dict[JobState, int]
    timed_leases: int
    fence: int
    seq: int
    next_expiry_at: int | None


EnqueueOutcome: TypeAlias = Enqueued | Duplicate | Conflict
StartOutcome: TypeAlias = Started | Lost
ExtendOutcome: TypeAlias = Extended | Lost
CommitOutcome: TypeAlias = Committed | Conflict | Lost
AckOutcome: TypeAlias = Acked | Lost
NackOutcome: TypeAlias = Nacked | Lost
ReleaseOutcome: TypeAlias = Released | Lost
AcquireOutcome: TypeAlias = Acquired | AlreadyAcquired | Backlogged | AlreadyFinished | OutOfOrder
CancelOutcome: TypeAlias = Cancelled | AlreadySucceeded | Missing


# The verbs -----------------------------------------------------------------------------------------------------


class Enqueue(Command[list[EnqueueOutcome]], frozen=True):
    """`are_new`: the ids were drawn for this call, which is not a repeat; a store may then skip looking for them."""

    jobs: Sequence[JobSpec]
    are_new: bool = False


class Claim(Command[list[Lease]], frozen=True):
    """At most `limit` jobs of `queues` (in this order of preference); one token for each."""

    worker: str
    queues: Sequence[str]
    limit: int
    tokens: Sequence[str]
    request_id: str | None = None
    kinds: Mapping[str, Policy] = {}


class StartReport(Struct, frozen=True):
    """`age_us`: how long ago the handler started, for starts that are told late."""

    job_id: str
    token: str
    age_us: int = 0


class Start(Command[list[StartOutcome]], frozen=True):
    reports: Sequence[StartReport]


class LeaseRef(Struct, frozen=True):
    job_id: str
    token: str


class Extend(Command[list[ExtendOutcome]], frozen=True):
    leases: Sequence[LeaseRef]


class Followup(Struct, frozen=True):
    """A job to be enqueued with a commit; its id follows from the committing job's."""

    queue: str
    kind: str
    payload: bytes = b"{}"
    lane: str | None = None
    priority: int = 0
    run_at: int | None = None
    delay_us: int = 0
    policy: Policy | None = None


class Commit(Command[CommitOutcome], frozen=True):
    job_id: str
    token: str
    result: bytes | None = None
    followups: Sequence[Followup] = ()


class AckReport(Struct, frozen=True):
    """`result` is the job's, unless it was committed with one before."""

    job_id: str
    token: str
    result: bytes | None = None


class Ack(Command[list[AckOutcome]], frozen=True):
    reports: Sequence[AckReport]


class NackReport(Struct, frozen=True):
    """`jitter` in [0, 1) draws the back-off; `delay_us` replaces it; `keep_lease` needs a `report_id` to tell a repeat
    from a second failure."""

    job_id: str
    token: str
    error: str
    jitter: float = 0.0
    delay_us: int | None = None
    is_permanent: bool = False
    keep_lease: bool = False
    report_id: str = ""


class Nack(Command[list[NackOutcome]], frozen=True):
    reports: Sequence[NackReport]


class ReleaseReport(Struct, frozen=True):
    """Without a delay the job keeps its place in the order. `error` says why it could not be run, if it could not."""

    job_id: str
    token: str
    delay_us: int | None = None
    error: str | None = None


class Release(Command[list[ReleaseOutcome]], frozen=True):
    reports: Sequence[ReleaseReport]


class Expire(Command[list[Expiration]], frozen=True):
    limit: int


class AcquireRequest(Struct, frozen=True):
    queue: str
    lane: str
    offset: int
    worker: str
    token: str
    kind: str = "offset"
    payload: bytes = b"{}"
    policy: Policy | None = None


class Acquire(Command[list[AcquireOutcome]], frozen=True):
    requests: Sequence[AcquireRequest]


# The operator's ------------------------------------------------------------------------------------------------


class JobFilter(Struct, frozen=True):
    """Which jobs; every field that is set must fit."""

    job_ids: tuple[str, ...] | None = None
    queue: str | None = None
    kind: str | None = None
    lane: str | None = None
    states: frozenset[JobState] | None = None
    updated_before: int | None = None
    updated_after: int | None = None
    error_contains: str | None = None


class Cancel(Command[list[CancelOutcome]], frozen=True):
    job_ids: Sequence[str]
    by: str
    reason: str


class Redrive(Command[Operated], frozen=True):
    """FAILED and DEAD jobs that fit become READY again; CANCELLED ones with `include_cancelled`, and by id alone."""

    filter: JobFilter
    by: str
    reason: str
    limit: int
    after: int = 0
    include_cancelled: bool = False


class Purge(Command[Operated], frozen=True):
    """SUCCEEDED, FAILED, DEAD and CANCELLED jobs that fit are forgotten."""

    filter: JobFilter
    by: str
    reason: str
    limit: int
    after: int = 0


class Pause(Command[None], frozen=True):
    queue: str
    by: str
    reason: str


class Resume(Command[None], frozen=True):
    queue: str
    by: str
    reason: str


class SetPolicy(Command[None], frozen=True):
    queue: str
    policy: Policy
    by: str
    reason: str


class Prune(Command[int], frozen=True):
    """Retention: forget SUCCEEDED jobs that ended before `before`, and the oldest beyond `keep`; answers how many."""

    before: int
    keep: int
    limit: int


# Reading -------------------------------------------------------------------------------------------------------


class GetJob(Command[Job | None], frozen=True):
    job_id: str


class ListJobs(Command[JobPage], frozen=True):
    """Jobs in the order of their sequence numbers, or newest first; `after`: the page before, 0: from the start."""

    filter: JobFilter
    limit: int
    after: int = 0
    newest_first: bool = False


class ListQueues(Command[list[QueueView]], frozen=True):
    limit: int
    after: str = ""


class GetLane(Command[LaneView | None], frozen=True):
    queue: str
    lane: str


class ListLanes(Command[LanePage], frozen=True):
    queue: str
    limit: int
    blocked_only: bool = False
    after: int = 0


class ListActions(Command[list[Action]], frozen=True):
    """The latest operator actions, newest first."""

    limit: int


class DueIn(Command[int | None], frozen=True):
    """In how many microseconds the next job of these queues is due; 0: now, None: none is waiting."""

    queues: Sequence[str]


class GetTotals(Command[Totals], frozen=True):
    pass
