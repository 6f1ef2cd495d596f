"""The steps of the tests of schedules: one that is due every minute, by a wall clock far from the store's."""

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
from leasemill.kernel.model import SECOND, JobSpec, Verb
from leasemill.kernel.schedule import (
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
NOON: Final = 1_900_000_800 * SECOND  # a whole number of minutes, far from the store's own clock
CALL: Final = JobSpec("", QUEUE, "kind", b'{"days": 3}')


def every_minute(name: str = "tidy", **fields: Any) -> ScheduleSpec:
    return ScheduleSpec(name, "* * * * *", "UTC", fields.pop("call", CALL), **fields)


def set_schedule(harness: Harness, schedule: ScheduleSpec, wall: int = NOON - 1) -> Schedule:
    next_at = wall // MINUTE * MINUTE + MINUTE
    return expect(Schedule, harness.store.run(SetSchedule(schedule, next_at, wall, OPERATOR, WHY)))


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


def fire(harness: Harness, fired: TickFire, wall: int | None = None) -> TickOutcome:
    return only(harness.store.run(FireTicks([fired], fired.due[-1] if wall is None else wall)))


def fire_next(harness: Harness, name: str = "tidy") -> TickFired:
    return expect(TickFired, fire(harness, fire_of(schedule_of(harness, name))))


def fire_until(harness: Harness, until: int, wall: int | None = None) -> TickFired:
    return expect(TickFired, fire(harness, fire_of(schedule_of(harness), until=until), wall or until))


def reasons(outcome: TickFired) -> list[SkipReason]:
    return [skip.reason for skip in outcome.skips]


def verbs(harness: Harness) -> list[Verb]:
    return [action.verb for action in reversed(harness.store.actions())]
