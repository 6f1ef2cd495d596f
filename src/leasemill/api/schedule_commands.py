"""Commands about schedules, with what they need from the calendar. The store's clock decides what is due (L8).

If another caller changes the schedule meanwhile, it is read again and the ticks are computed again.
"""

from __future__ import annotations

import re
from datetime import datetime
from itertools import takewhile
from typing import Final, NoReturn

from leasemill.api.command_steps import Steps, Stepwise, ask
from leasemill.api.cron import due_ticks, instant_of, next_tick_after, ticks_after
from leasemill.errors import Invalid, NotFound, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.schedule import (
    CAUGHT_UP,
    FAR_US,
    RESERVED,
    SKIPS_KEPT,
    Missed,
    Schedule,
    ScheduleSpec,
    TickFire,
    without_headers,
)
from leasemill.store.base import Store

TRIES: Final = 20
MOST_BACKFILLED: Final = 10_000
PAGE: Final = 1_000
TICK_ID: Final = re.compile(rf"{RESERVED}([^/]+)/(\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{{6}})?Z)", re.ASCII)


def tick_of(job_id: str) -> tuple[str, datetime] | None:
    """The schedule and the time that a job's id names; None: it is not the job of a tick."""
    match = TICK_ID.fullmatch(job_id)
    if match is None:
        return None
    try:
        return match[1], datetime.fromisoformat(match[2])
    except ValueError:
        return None


@Stepwise
def set_schedule(store: Store, spec: ScheduleSpec, *, by: str, reason: str) -> Steps[Schedule]:
    """P1: its first tick is after now, and after the latest one that was decided on."""
    for _ in range(TRIES):
        known, now = (yield from ask(c.GetSchedule(spec.name))), (yield from ask(c.GetTime()))
        after = now if known is None else max(now, known.last_at or 0)
        next_at = next_tick_after(spec.expression, spec.zone, after)
        answer = yield from ask(c.SetSchedule(spec, next_at, now, by, reason))
        if not isinstance(answer, c.ScheduleMoved):
            return answer
    raise _changed_meanwhile(spec.name)


@Stepwise
def move_back(store: Store, schedule: Schedule, *, by: str) -> Steps[Schedule | None]:
    """P10: let a schedule whose next tick lies too far ahead go on with the first tick after now, if it does; returns
    the schedule as it is then. None: there is nothing to do, or another caller has done it."""
    now = yield from ask(c.GetTime())
    if not passes_over(schedule, now, FAR_US):
        return None
    spec, wrong = schedule.spec, instant_of(schedule.next_at).isoformat().replace("+00:00", "Z")
    next_at = next_tick_after(spec.expression, spec.zone, now)
    reason = f"its next tick was {wrong}, and would have passed over those before it"
    answer = yield from ask(c.SetSchedule(spec, next_at, now, by, reason, schedule.next_at))
    return None if isinstance(answer, c.ScheduleMoved) else answer


@Stepwise
def remove_schedule(store: Store, name: str, *, by: str, reason: str) -> Steps[Schedule]:
    return (yield from ask(c.RemoveSchedule(name, by, reason))) or _unknown(name)


@Stepwise
def pause_schedule(store: Store, name: str, *, by: str, reason: str) -> Steps[Schedule]:
    return (yield from ask(c.PauseSchedule(name, by, reason))) or _unknown(name)


@Stepwise
def resume_schedule(store: Store, name: str, *, by: str, reason: str) -> Steps[Schedule]:
    """P5: ticks that went by while it was paused are skipped."""
    for _ in range(TRIES):
        known, now = (yield from _known(name)), (yield from ask(c.GetTime()))
        tick_at, spec = known.next_at, known.spec
        command = c.ResumeSchedule(name, tick_at, (), tick_at, by, reason)
        if tick_at <= now:
            due = due_ticks(spec.expression, spec.zone, tick_at, now, SKIPS_KEPT)
            command = c.ResumeSchedule(name, tick_at, due.ticks, due.next_at, by, reason, due.passed)
        answer = (yield from ask(command)) or _unknown(name)
        if not isinstance(answer, c.ScheduleMoved):
            return answer
    raise _changed_meanwhile(name)


@Stepwise
def fire_now(store: Store, name: str, *, by: str, reason: str) -> Steps[c.EnqueueOutcome]:
    """Make a job at once; the next tick stays unchanged."""
    now = yield from ask(c.GetTime())
    return (yield from ask(c.FireNow(name, now, by, reason))) or _unknown(name)


@Stepwise
def backfill(store: Store, name: str, first: int, last: int, *, by: str, reason: str) -> Steps[list[c.EnqueueOutcome]]:
    """Jobs for the ticks of a time that is over, both ends included."""
    spec = (yield from _known(name)).spec
    ticks: list[int] = []
    for tick in takewhile(lambda tick: tick <= last, ticks_after(spec.expression, spec.zone, first - 1)):
        ticks.append(tick)
        if len(ticks) > MOST_BACKFILLED:
            raise Invalid(f"more than {MOST_BACKFILLED:,} ticks between these times: backfill a shorter time")
    outcomes: list[c.EnqueueOutcome] = []
    for start in range(0, len(ticks), CAUGHT_UP):
        made = yield from ask(c.Backfill(name, tuple(ticks[start : start + CAUGHT_UP]), by, reason))
        if isinstance(made, c.ScheduleMoved):
            if made.schedule is None:
                _unknown(name)
            raise Invalid(f"schedule {name!r} fires future ticks itself: backfill only past times")
        outcomes += made
    return outcomes


@Stepwise
def list_schedules(store: Store) -> Steps[list[Schedule]]:
    """Every schedule, by name."""
    found: list[Schedule] = []
    while page := (yield from ask(c.ListSchedules(PAGE, found[-1].spec.name if found else ""))):
        found += page
        if len(page) < PAGE:
            break
    return found


def _known(name: str) -> Steps[Schedule]:
    return (yield from ask(c.GetSchedule(name))) or _unknown(name)


def passes_over(schedule: Schedule, now: int, after_us: int) -> bool:
    """Return True if a tick that is more than `after_us` ahead comes before the schedule's next tick, and would be
    lost."""
    spec = schedule.spec
    from_at = now + after_us
    return schedule.next_at > from_at and schedule.next_at > next_tick_after(spec.expression, spec.zone, from_at)


def fire_of(schedule: Schedule, now: int) -> TickFire:
    """The ticks of a schedule that are due: with `missed` all, each that may be fired, else the latest and a few."""
    spec = schedule.spec
    keep = CAUGHT_UP if spec.missed is Missed.ALL else SKIPS_KEPT
    due = due_ticks(spec.expression, spec.zone, schedule.next_at, now, keep)
    return TickFire(spec.name, schedule.revision, schedule.next_at, due.ticks, due.next_at, due.passed)


def is_same(known: Schedule | None, spec: ScheduleSpec) -> bool:
    """P1: setting it would change nothing."""
    return known is not None and without_headers(known.spec) == without_headers(spec)


def _changed_meanwhile(name: str) -> Unavailable:
    return Unavailable(f"schedule {name!r} was changed by others in each of {TRIES} tries: repeat the call")


def _unknown(name: str) -> NoReturn:
    raise NotFound(f"there is no schedule {name!r}: it was never set, or has been removed")
