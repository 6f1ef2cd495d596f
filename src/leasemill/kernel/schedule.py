"""Schedules as records, and what happens to their ticks. Rules P1 to P10.

Pure, and without a calendar: ticks are instants that callers compute from an expression and a zone. What is decided
here is which of the ticks that are due make a job, and why the others do not. Whether a tick is due is asked of the
store's clock, like everything else: the clock of a caller decides nothing (L8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from leasemill.kernel.model import SECOND, UNENDED_STATES, JobSpec, JobState

RESERVED: Final = "cron/"
"""P4: ids that begin so are those of schedules' jobs."""

DAY_US: Final = 24 * 3_600 * SECOND
FAR_US: Final = DAY_US
"""P10: how far ahead of now a next tick must be before it may be moved back."""
FRESH_US: Final = 60 * SECOND
"""P5: with `missed` skip, a tick this late is missed."""

CAUGHT_UP: Final = 1_000
"""P5: the most ticks that are made up for at once."""

SKIPS_KEPT: Final = 20
OPEN_KEPT: Final = 20
"""Jobs that a schedule knows as not ended."""


class Overlap(StrEnum):
    """The choice of what happens to a tick while the job of an earlier one has not ended (P6)."""

    SKIP = "skip"
    ONE = "one"
    QUEUE = "queue"
    ALLOW = "allow"


class Missed(StrEnum):
    """The choice of what happens to several ticks that are due at once (P5)."""

    LATEST = "latest"
    ALL = "all"
    SKIP = "skip"


class SkipReason(StrEnum):
    """The reason why a tick enqueued no job."""

    OVERLAP = "overlap"
    MISSED = "missed"
    PAUSED = "paused"
    UNIQUE = "unique"
    REFUSED = "refused"


class Skip(Struct, frozen=True, array_like=True, gc=False):
    """A tick that made no job; `job_id`: the job it would have overlapped."""

    tick_at: int
    reason: SkipReason
    job_id: str | None = None


class ScheduleSpec(Struct, frozen=True, array_like=True, gc=False):
    """The schedule that a caller asks for. `call` is the job that a tick enqueues, without an id. `expression`: as the
    caller's calendar reads it; here it is text."""

    name: str
    expression: str
    zone: str
    call: JobSpec
    overlap: Overlap = Overlap.SKIP
    missed: Missed = Missed.LATEST
    jitter_us: int = 0
    catch_up_us: int = DAY_US


class PauseMark(Struct, frozen=True, array_like=True, gc=False):
    """The record of who paused a schedule, when and why."""

    at: int
    by: str
    reason: str


class Schedule(Struct, array_like=True, gc=False):
    """A schedule as it stands. It changes only when an event is applied."""

    spec: ScheduleSpec
    revision: int
    next_at: int
    since_at: int
    """The time at which it was first set: no tick before that is ever due."""
    set_at: int
    last_at: int | None = None
    """The latest tick that was decided on."""
    last_job_id: str | None = None
    open_ids: tuple[str, ...] = ()
    """The latest of its jobs that had not ended when a tick was last decided on."""
    pause: PauseMark | None = None
    fired: int = 0
    skipped: dict[SkipReason, int] = {}
    skips: tuple[Skip, ...] = ()
    set_by: str = ""
    set_reason: str = ""
    """The person who set it last, and why; `DECLARED`: a worker, whose code declares it."""


class TickFire(Struct, frozen=True):
    """The ticks of one schedule that are due, as a caller computed them.

    `tick_at` and `revision`: the schedule as the caller knows it, `tick_at` being its next tick. `due`: the latest
    ticks that are due, in order, and `passed`: how many are due before those. `next_at`: the tick after them.
    """

    name: str
    revision: int
    tick_at: int
    due: tuple[int, ...]
    next_at: int
    passed: int = 0


class Plan(NamedTuple):
    """The decision on the ticks that are due."""

    ticks: list[int]
    jobs: list[JobSpec]
    """The job of each of the ticks."""
    skips: list[Skip]
    open_ids: list[str]
    """Those of its earlier jobs that have not ended."""


# Ticks and their jobs --------------------------------------------------------------------------------------------


def is_next(schedule: Schedule, fire: TickFire, now: int) -> bool:
    """P2: the ticks are those that are due now, of the schedule as it is."""
    return (
        schedule.pause is None
        and schedule.revision == fire.revision
        and schedule.next_at == fire.tick_at
        and fire.due[-1] <= now  # L8: by the store's clock, whatever the caller's shows
    )


def plan(
    schedule: Schedule, fire: TickFire, now: int, state_of: Callable[[str], JobState | None], *, is_refused: bool
) -> Plan:
    """Return what happens to each tick (P5, P6). `state_of`: of a job by its id; `is_refused`: its queue takes no
    jobs."""
    spec = schedule.spec
    taken = _taken(spec, fire.due, now)
    skips = [Skip(tick, SkipReason.MISSED) for tick in fire.due if tick not in taken]
    states = {job_id: state_of(job_id) for job_id in schedule.open_ids}
    open_ids = [job_id for job_id, state in states.items() if state in UNENDED_STATES]
    waits = [job_id for job_id in open_ids if states[job_id] is JobState.READY]
    in_the_way = waits if spec.overlap is Overlap.ONE else list(open_ids)
    ticks: list[int] = []
    jobs: list[JobSpec] = []
    for tick, following in zip(fire.due, (*fire.due[1:], fire.next_at), strict=True):
        if tick not in taken:
            continue
        if is_refused:
            skips.append(Skip(tick, SkipReason.REFUSED))
        elif in_the_way and spec.overlap in (Overlap.SKIP, Overlap.ONE):
            skips.append(Skip(tick, SkipReason.OVERLAP, in_the_way[-1]))
        else:
            ticks.append(tick)
            jobs.append(job_of_tick(spec, tick_id(spec.name, tick), jitter_us(spec, tick, following)))
            in_the_way.append(jobs[-1].id)
    return Plan(ticks, jobs, skips, open_ids)


def _taken(spec: ScheduleSpec, due: Sequence[int], now: int) -> frozenset[int]:
    """P5: those of the due ticks that are not missed."""
    match spec.missed:
        case Missed.LATEST:
            return frozenset(due[-1:])
        case Missed.ALL:
            return frozenset(tick for tick in due if tick >= now - spec.catch_up_us)
        case Missed.SKIP:
            return frozenset(tick for tick in due[-1:] if tick > now - FRESH_US)


def job_of_tick(spec: ScheduleSpec, job_id: str, delay_us: int = 0) -> JobSpec:
    """The job that a tick makes. P6: those that wait for each other share a lane."""
    call = spec.call
    lane = call.lane
    if lane is None and spec.overlap in (Overlap.ONE, Overlap.QUEUE):
        lane = f"{RESERVED}{spec.name}"
    return replace(call, id=job_id, lane=lane, delay_us=delay_us)


def queues_of(call: JobSpec) -> set[str]:
    """Return the queues of the job, and of those that its success enqueues."""
    return {call.queue, *(chained.queue for chained in (call.rules.chain if call.rules is not None else ()))}


def without_headers(spec: ScheduleSpec) -> ScheduleSpec:
    """E4: headers are not content."""
    return replace(spec, call=replace(spec.call, headers=None))


def jitter_us(spec: ScheduleSpec, tick: int, following: int) -> int:
    """P8: the same wherever it is computed, and never as long as the time until the next tick."""
    most = min(spec.jitter_us, following - tick)
    if most <= 0:
        return 0
    return int.from_bytes(blake2b(f"{spec.name}/{tick}".encode(), digest_size=8).digest(), "big") % most


def tick_id(name: str, tick: int) -> str:
    """P4: the id of a tick's job."""
    return f"{RESERVED}{name}/{_utc(tick // SECOND)}Z"


def hand_id(name: str, at: int) -> str:
    """The id of a job that was fired by hand: it never is that of a tick."""
    return f"{RESERVED}{name}/{_utc(at // SECOND)}.{at % SECOND:06d}Z"


def _utc(seconds: int) -> str:
    """An instant in ISO 8601, by the proleptic Gregorian calendar; years are counted from March."""
    days, second = divmod(seconds, 86_400)
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = era * 400 + year_of_era + (month <= 2)
    return f"{year:04d}-{month:02d}-{day:02d}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


# Changes of a record, when an event is applied ---------------------------------------------------------------------


def count_skips(schedule: Schedule, skips: Sequence[Skip], passed: int, reason: SkipReason) -> None:
    """`passed`: ticks that are counted for this reason, and not kept one by one."""
    counts = dict(schedule.skipped)
    for skip in skips:
        counts[skip.reason] = counts.get(skip.reason, 0) + 1
    if passed:
        counts[reason] = counts.get(reason, 0) + passed
    schedule.skipped = counts
    schedule.skips = (*schedule.skips, *skips)[-SKIPS_KEPT:]


def made(schedule: Schedule, job_ids: Sequence[str], open_ids: Sequence[str]) -> None:
    schedule.fired += len(job_ids)
    schedule.open_ids = (*open_ids, *job_ids)[-OPEN_KEPT:]
    if job_ids:
        schedule.last_job_id = job_ids[-1]
