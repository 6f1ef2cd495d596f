"""Everything that can happen, as facts. State changes by applying these and in no other way.

An event carries everything that was chosen, drawn or measured (tokens, fences, times), so that applying it never
decides, draws or measures again. The numbers are the events' names in stored logs: never reuse one.
"""

from __future__ import annotations

from msgspec import Struct

from leasemill.kernel.model import ChainedJob, JobSpec, LimitTerms, LossReason, Policy, Terms, Verb
from leasemill.kernel.orders import Order
from leasemill.kernel.schedule import ScheduleSpec, Skip


class Event(Struct, frozen=True, array_like=True, gc=False):
    """The common root; never stored itself."""


class JobEnqueued(Event, frozen=True, tag=1):
    """A job exists. Applying it for a known id changes nothing (E5)."""

    job: JobSpec
    at: int


class LeaseGranted(Event, frozen=True, tag=2):
    job_id: str
    attempt: int
    fence: int
    token: str
    worker: str
    request_id: str | None
    at: int
    expires_at: int
    terms: Terms


class ExecutionStarted(Event, frozen=True, tag=3):
    job_id: str
    token: str
    at: int
    started_at: int


class LeaseExtended(Event, frozen=True, tag=4):
    job_id: str
    token: str
    at: int
    expires_at: int


class ExecutionCommitted(Event, frozen=True, tag=5):
    """The effect: the marker, the result and the follow-up jobs, in one fact."""

    job_id: str
    token: str
    at: int
    result: bytes | None
    followups: tuple[JobSpec, ...]


class ExecutionDone(Event, frozen=True, tag=6):
    """The job succeeded. Without an earlier commit this is also its commit, with `result`."""

    job_id: str
    token: str
    at: int
    ended_by: Verb
    result: bytes | None
    error: str | None


class ExecutionFailed(Event, frozen=True, tag=7):
    """The handler failed. Final: FAILED; else READY again at `retry_at`."""

    job_id: str
    token: str
    at: int
    error: str
    is_final: bool
    blocks_lane: bool
    retry_at: int | None


class FailureKept(Event, frozen=True, tag=8):
    """The handler failed, a retry is counted, and the lease stays where it is."""

    job_id: str
    token: str
    at: int
    error: str
    report_id: str


class LeaseReleased(Event, frozen=True, tag=9):
    """The holder gave the job back; `error` says why it could not be run. Older logs lack the field."""

    job_id: str
    token: str
    at: int
    available_at: int
    error: str | None = None


class LeaseExpired(Event, frozen=True, tag=10):
    """Time took the lease. Final: the job is quarantined."""

    job_id: str
    token: str
    at: int
    is_final: bool
    blocks_lane: bool


class HolderDied(Event, frozen=True, tag=50):
    """The holder of the lease is proved to have ended. Final: the job is quarantined."""

    job_id: str
    token: str
    at: int
    is_final: bool
    blocks_lane: bool
    cause: str


class ReportRefused(Event, frozen=True, tag=11):
    job_id: str
    token: str
    verb: Verb
    worker: str | None
    attempt: int | None
    current_attempt: int
    reason: LossReason
    at: int


class JobCancelled(Event, frozen=True, tag=12):
    """An operator cancelled the job: CANCELLED, unless it had committed and an ExecutionDone came first."""

    job_id: str
    at: int
    by: str
    reason: str


class JobRedriven(Event, frozen=True, tag=13):
    job_id: str
    at: int
    by: str
    reason: str


class JobPurged(Event, frozen=True, tag=14):
    job_id: str
    at: int
    by: str
    reason: str


class QueuePaused(Event, frozen=True, tag=15):
    queue: str
    at: int
    by: str
    reason: str


class QueueResumed(Event, frozen=True, tag=16):
    queue: str
    at: int
    by: str
    reason: str


class QueuePolicySet(Event, frozen=True, tag=17):
    queue: str
    at: int
    by: str
    reason: str
    policy: Policy


class JobsPruned(Event, frozen=True, tag=18):
    """Retention: these finished jobs are forgotten."""

    job_ids: tuple[str, ...]
    at: int


class GroupCreated(Event, frozen=True, tag=45):
    """A group exists and takes members. In a `parent` it counts as one member."""

    group_id: str
    at: int
    then: ChainedJob | None
    on_end: ChainedJob | None
    parent: str | None


class GroupSealed(Event, frozen=True, tag=46):
    """The group takes no more members but those that its own add. `by` and `reason`: an operator sealed it."""

    group_id: str
    at: int
    by: str = ""
    reason: str = ""


class GroupEnded(Event, frozen=True, tag=47):
    """All members have ended; again after a redrive. The callbacks' JobEnqueued come before it, in the same fact."""

    group_id: str
    at: int
    has_succeeded: bool


class GroupsPruned(Event, frozen=True, tag=48):
    """Retention: these groups are over, none of their members is there, and they are forgotten."""

    group_ids: tuple[str, ...]
    at: int


class JobReplaced(Event, frozen=True, tag=30):
    """A job that was never claimed has another payload, and may be due later (U8, U10)."""

    job_id: str
    at: int
    payload: bytes
    headers: dict[str, str] | None
    available_at: int


class LimitSet(Event, frozen=True, tag=35):
    """An operator set a limit; `terms` is all that operators have set of it."""

    name: str
    at: int
    by: str
    reason: str
    terms: LimitTerms


class LimitCleared(Event, frozen=True, tag=36):
    """What operators had set is dropped; what code declares holds again."""

    name: str
    at: int
    by: str
    reason: str


class LimitDeclared(Event, frozen=True, tag=37):
    """A worker started whose code declares these numbers."""

    name: str
    at: int
    by: str
    reason: str
    terms: LimitTerms


class RateCharged(Event, frozen=True, tag=38):
    """A grant moved the instant from which a rate counts (T10)."""

    name: str
    key: str | None
    at: int
    tat: int


class RateHeld(Event, frozen=True, tag=39):
    """A handler was throttled: nothing is granted under this limit for a while (T13)."""

    name: str
    key: str | None
    at: int
    tat: int


class ScheduleSet(Event, frozen=True, tag=19):
    """A schedule is there, or has other content. `wall`: when it was set, by the clock its ticks are asked of."""

    schedule: ScheduleSpec
    revision: int
    next_at: int
    at: int
    by: str
    reason: str
    wall: int


class ScheduleRemoved(Event, frozen=True, tag=20):
    name: str
    at: int
    by: str
    reason: str


class SchedulePaused(Event, frozen=True, tag=21):
    name: str
    at: int
    by: str
    reason: str


class ScheduleResumed(Event, frozen=True, tag=22):
    """Ticks that went by meanwhile are skipped: the latest of them, and how many were before those."""

    name: str
    next_at: int
    at: int
    by: str
    reason: str
    skips: tuple[Skip, ...]
    passed: int


class ScheduleFired(Event, frozen=True, tag=23):
    """The ticks up to `tick_at` are decided on. Its jobs were enqueued by the events before it; `open_ids`: the earlier
    ones that have not ended; `passed`: ticks that were missed and are not among `skips`."""

    name: str
    tick_at: int
    next_at: int
    at: int
    job_ids: tuple[str, ...]
    open_ids: tuple[str, ...]
    skips: tuple[Skip, ...]
    passed: int


class ScheduleFiredByHand(Event, frozen=True, tag=24):
    name: str
    at: int
    by: str
    reason: str
    job_id: str


class ScheduleBackfilled(Event, frozen=True, tag=25):
    name: str
    at: int
    by: str
    reason: str
    job_ids: tuple[str, ...]


class WorkerOrdered(Event, frozen=True, tag=51):
    """An operator asked one process of a worker for something (O12)."""

    worker: str
    instance: str
    order: Order
    at: int
    by: str
    reason: str


AnyEvent = (
    JobEnqueued
    | LeaseGranted
    | ExecutionStarted
    | LeaseExtended
    | ExecutionCommitted
    | ExecutionDone
    | ExecutionFailed
    | FailureKept
    | LeaseReleased
    | LeaseExpired
    | ReportRefused
    | JobCancelled
    | JobRedriven
    | JobPurged
    | QueuePaused
    | QueueResumed
    | QueuePolicySet
    | JobsPruned
    | GroupCreated
    | GroupSealed
    | GroupEnded
    | GroupsPruned
    | JobReplaced
    | LimitSet
    | LimitCleared
    | LimitDeclared
    | RateCharged
    | RateHeld
    | ScheduleSet
    | ScheduleRemoved
    | SchedulePaused
    | ScheduleResumed
    | ScheduleFired
    | ScheduleFiredByHand
    | ScheduleBackfilled
    | HolderDied
    | WorkerOrdered
)
