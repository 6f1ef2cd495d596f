"""The steps of the tests of schedules: one that is due every minute. Each step is at its own time, or after it."""

from __future__ import annotations

from typing import Any, Final

from leasemill.kernel.commands import (
    FireTicks,
    GetSchedule,
    SetSchedule,
    TickFire,
    TickFired,
    TickOutcome,
)
from leasemill.kernel.model import SECOND, JobSpec, Policy, Verb
from leasemill.kernel.schedule import (
    DAY_US,
    Overlap,
    Schedule,
    ScheduleSpec,
    SkipReason,
)
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    OPERATOR,
    QUEUE,
    WHY,
    expect,
    only,
)

MINUTE: Final = 60 * SECOND
NOON: Final = 1_900_000_800 * SECOND  # a whole number of minutes, after the store's first time
CALL: Final = JobSpec("", QUEUE, "kind", b'{"days": 3}', policy=Policy(lease_ttl_us=30 * MINUTE))


def every_minute(name: str = "tidy", **fields: Any) -> ScheduleSpec:
    return ScheduleSpec(name, "* * * * *", "UTC", fields.pop("call", CALL), **fields)


def wait_until(harness: Harness, at: int) -> None:
    """Time goes on until then, if it is not later already."""
    harness.clock.advance(us=max(0, at - harness.clock.now()))


def set_schedule(harness: Harness, schedule: ScheduleSpec, now: int = NOON - 1) -> Schedule:
    """As a caller does that read the store's time then."""
    wait_until(harness, now)
    next_at = now // MINUTE * MINUTE + MINUTE
    return expect(Schedule, harness.store.run(SetSchedule(schedule, next_at, now, OPERATOR, WHY)))


def schedule_of(harness: Harness, name: str = "tidy") -> Schedule:
    return expect(Schedule, harness.store.run(GetSchedule(name)))


def fire_of(schedule: Schedule, *, until: int | None = None, most: int = 1_000) -> TickFire:
    """The ticks of a schedule of every minute from its next one until this time."""
    ticks = range(schedule.next_at, max(schedule.next_at, until or 0) + 1, MINUTE)
    return TickFire(
        schedule.spec.name,
        schedule.revision,
        schedule.next_at,
        tuple(ticks[-most:]),
        ticks[-1] + MINUTE,
        max(0, len(ticks) - most),
    )


def fire(harness: Harness, fired: TickFire, now: int | None = None) -> TickOutcome:
    """Then, or when the last of the ticks is due."""
    wait_until(harness, now := (fired.due[-1] if fired.due else 0) if now is None else now)
    return only(harness.store.run(FireTicks([fired], now)))


def fire_next(harness: Harness, name: str = "tidy") -> TickFired:
    return expect(TickFired, fire(harness, fire_of(schedule_of(harness, name))))


def fire_until(harness: Harness, until: int, now: int | None = None) -> TickFired:
    return expect(TickFired, fire(harness, fire_of(schedule_of(harness), until=until), now or until))


def set_far_ahead(harness: Harness) -> Schedule:
    """A schedule whose latest tick is in a year, and its next one too: the clock was ahead, and is right again."""
    schedule = set_schedule(harness, every_minute(overlap=Overlap.ALLOW))
    expect(TickFired, fire(harness, fire_of(schedule, until=NOON + 365 * DAY_US, most=20)))
    harness.clock.advance(us=NOON - 1 - harness.clock.now())
    return schedule_of(harness)


def move_back(schedule: Schedule, next_at: int) -> SetSchedule:
    return SetSchedule(schedule.spec, next_at, next_at - 1, OPERATOR, WHY, moves=schedule.next_at)


def reasons(outcome: TickFired) -> list[SkipReason]:
    return [skip.reason for skip in outcome.skips]


def verbs(harness: Harness) -> list[Verb]:
    return [action.verb for action in reversed(harness.store.actions())]
