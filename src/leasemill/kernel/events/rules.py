"""The events of what relates jobs (unique keys, groups, limits, schedules), and of workers."""

from __future__ import annotations

from typing import TypeAlias

from leasemill.kernel.events.jobs import Event
from leasemill.kernel.model import ChainedJob, LimitTerms, Order
from leasemill.kernel.schedule import ScheduleSpec, Skip


class JobReplaced(Event, frozen=True, tag=30):
    """A job that was never claimed has another payload, and may be due later (U8, U10)."""

    job_id: str
    at: int
    payload: bytes
    headers: dict[str, str] | None
    available_at: int


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
    """All members of a group have ended; recorded again after a redrive. The callbacks' JobEnqueued come before it, in
    the same fact."""

    group_id: str
    at: int
    has_succeeded: bool


class GroupsPruned(Event, frozen=True, tag=48):
    """Retention: these groups are over, none of their members is there, and they are forgotten."""

    group_ids: tuple[str, ...]
    at: int


class LimitSet(Event, frozen=True, tag=35):
    """An operator set a limit; `terms` is all that operators have set of it."""

    name: str
    at: int
    by: str
    reason: str
    terms: LimitTerms


class LimitCleared(Event, frozen=True, tag=36):
    """The terms that operators had set are dropped; those that code declares hold again."""

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
    """A schedule is there, or has other content. `wall`: when it was set, by the clock that its ticks follow: the
    store's, and in earlier versions the caller's."""

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


class ClockSet(Event, frozen=True, tag=52):
    """The store's clock was at `from_at`, or a little later, and goes on at `at` (W17)."""

    from_at: int
    at: int


RuleEvent: TypeAlias = (
    JobReplaced
    | GroupCreated
    | GroupSealed
    | GroupEnded
    | GroupsPruned
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
    | WorkerOrdered
    | ClockSet
)
