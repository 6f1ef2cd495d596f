"""set, remove, pause and resume of schedules. Rules P1 and P5."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from leasemill.errors import Broken, Invalid
from leasemill.kernel.bounds import LATEST, LONGEST_US, check_name, check_number, check_string, check_text
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import (
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleSet,
)
from leasemill.kernel.model import Verb
from leasemill.kernel.schedule import (
    FAR_US,
    RESERVED,
    SKIPS_KEPT,
    Missed,
    Overlap,
    PauseMark,
    Schedule,
    ScheduleSpec,
    Skip,
    SkipReason,
    count_skips,
    job_of_tick,
    queues_of,
    tick_id,
    without_headers,
)
from leasemill.kernel.state import State
from leasemill.kernel.transitions.actions import check_operator, record
from leasemill.kernel.verbs import enqueue

__all__ = ["PauseSchedule", "RemoveSchedule", "ResumeSchedule", "ScheduleMoved", "SetSchedule"]

CALL_BYTES: Final = 64 * 1024
EXPRESSION_LENGTH: Final = 1_000


class ScheduleMoved(Struct, frozen=True):
    """Nothing was changed: the schedule is not as the caller knew it. `schedule`: as it is now; None: it is gone."""

    name: str
    schedule: Schedule | None


class SetSchedule(Command[Schedule | ScheduleMoved], frozen=True):
    """`next_at`: the first tick after `wall`, the store's time as the caller read it, and after the latest one that was
    decided on, as the caller knows it.

    `moves`: the next tick on record, which lies too far ahead: the schedule, with the content it has, is to go on at
    `next_at` instead (P10)."""

    schedule: ScheduleSpec
    next_at: int
    wall: int
    by: str
    reason: str
    moves: int | None = None


class RemoveSchedule(Command[Schedule | None], frozen=True):
    """The record goes; jobs it made stay. Returns what was removed."""

    name: str
    by: str
    reason: str


class PauseSchedule(Command[Schedule | None], frozen=True):
    name: str
    by: str
    reason: str


class ResumeSchedule(Command[Schedule | ScheduleMoved | None], frozen=True):
    """`due` and `passed`: the ticks that passed while it was paused, as the caller computed them."""

    name: str
    tick_at: int
    due: tuple[int, ...]
    next_at: int
    by: str
    reason: str
    passed: int = 0


# Checks --------------------------------------------------------------------------------------------------------


def check_set(command: SetSchedule) -> None:
    spec = command.schedule
    check_name("schedule", spec.name)
    check_text("expression", spec.expression, EXPRESSION_LENGTH)
    check_text("time zone", spec.zone)
    check_operator(command)
    for what, value, choices in (("overlap", spec.overlap, Overlap), ("missed", spec.missed, Missed)):
        if not isinstance(value, choices):
            raise Invalid(f"{what} is {value!r}; it must be one of {', '.join(choices)}")
    check_number("jitter_us", spec.jitter_us, 0, LONGEST_US)
    check_number("catch_up_us", spec.catch_up_us, 0, LONGEST_US)
    call = spec.call
    if call.id or call.run_at is not None or call.delay_us or call.offset is not None:
        raise Invalid(
            f"the call of schedule {spec.name!r} has an id, a delay, a time or an offset: leave them out, its ticks "
            "supply them"
        )
    if call.rules is not None and call.rules.group is not None:
        raise Invalid(f"the call of schedule {spec.name!r} is a member of a group: a group ends, a schedule does not")
    enqueue.check_job(job_of_tick(spec, tick_id(spec.name, 0)))
    if len(msgspec.msgpack.encode(call)) > CALL_BYTES:
        raise Invalid(
            f"the call of schedule {spec.name!r} has more than {CALL_BYTES:,} bytes: store its arguments elsewhere and "
            "pass a reference"
        )
    check_number("wall", command.wall, 0, LATEST)
    check_number("next_at", command.next_at, command.wall + 1, LATEST)
    if command.moves is not None:
        check_number("moves", command.moves, command.next_at + 1, LATEST)


def check_named(command: RemoveSchedule | PauseSchedule) -> None:
    check_string("schedule", command.name)
    check_operator(command)


def check_resume(command: ResumeSchedule) -> None:
    check_named_at(command.name, command.tick_at)
    check_operator(command)
    if len(command.due) > SKIPS_KEPT:
        raise Invalid(f"{len(command.due)} ticks that passed; name the latest {SKIPS_KEPT} and count the others")
    check_number("passed", command.passed, 0, LATEST)
    if command.due or command.passed or command.next_at != command.tick_at:
        check_due(command.tick_at, command.due, command.passed, command.next_at)


def check_named_at(name: str, tick_at: int) -> None:
    check_string("schedule", name)
    check_number("tick_at", tick_at, 0, LATEST)


def check_due(tick_at: int, due: tuple[int, ...], passed: int, next_at: int) -> None:
    """P3: the ticks begin with the one that is next, and go on to one after them."""
    ticks = (*due, next_at)
    for tick in ticks:
        check_number("tick", tick, 0, LATEST)
    if not due or any(earlier >= later for earlier, later in pairwise(ticks)):
        raise Invalid("the ticks that are due, and the next one, must be in order, and at least one must be due")
    if (due[0] == tick_at) != (passed == 0) or due[0] < tick_at:
        raise Invalid("the ticks that are due must begin with the schedule's next tick, or say how many they leave out")


# Decisions -------------------------------------------------------------------------------------------------------


def decide_set(state: State, command: SetSchedule, now: int) -> Decision[Schedule | ScheduleMoved]:
    spec = command.schedule
    for queue in queues_of(spec.call):
        enqueue.check_queue(state, queue)
    known = state.schedules.get(spec.name)
    if command.moves is not None:
        return _decide_move(known, command, now)
    if known is None:
        event = ScheduleSet(spec, 1, command.next_at, now, command.by, command.reason, command.wall)
        return (event,), schedule_of(event)
    if without_headers(known.spec) == without_headers(spec):
        return (), replace(known)  # P1: the same content changes nothing
    keeps_times = (known.spec.expression, known.spec.zone) == (spec.expression, spec.zone)
    if not keeps_times and known.last_at is not None and command.next_at <= known.last_at:
        return (), ScheduleMoved(spec.name, replace(known))
    next_at = known.next_at if keeps_times else command.next_at
    event = ScheduleSet(spec, known.revision + 1, next_at, now, command.by, command.reason, command.wall)
    return (event,), _changed(known, event)


def _decide_move(known: Schedule | None, command: SetSchedule, now: int) -> Decision[Schedule | ScheduleMoved]:
    """P10: only a next tick that is far ahead is moved back, and never to a time that has passed, in which ticks were
    fired. By a new revision, so that a caller that computed ticks before this is not heard (P2). A schedule that was
    removed or changed meanwhile is left alone."""
    name = command.schedule.name
    if known is None or without_headers(known.spec) != without_headers(command.schedule):
        return (), ScheduleMoved(name, None if known is None else replace(known))
    if known.next_at != command.moves or known.next_at <= now + FAR_US or command.next_at <= now:
        return (), ScheduleMoved(name, replace(known))
    event = ScheduleSet(known.spec, known.revision + 1, command.next_at, now, command.by, command.reason, command.wall)
    return (event,), _changed(known, event)


def decide_remove(state: State, command: RemoveSchedule, now: int) -> Decision[Schedule | None]:
    known = state.schedules.get(command.name)
    if known is None:
        return (), None
    return (ScheduleRemoved(command.name, now, command.by, command.reason),), replace(known)


def decide_pause(state: State, command: PauseSchedule, now: int) -> Decision[Schedule | None]:
    known = state.schedules.get(command.name)
    if known is None or known.pause is not None:
        return (), None if known is None else replace(known)
    event = SchedulePaused(command.name, now, command.by, command.reason)
    return (event,), replace(known, pause=PauseMark(now, command.by, command.reason))


def decide_resume(state: State, command: ResumeSchedule, now: int) -> Decision[Schedule | ScheduleMoved | None]:
    known = state.schedules.get(command.name)
    if known is None or known.pause is None:
        return (), None if known is None else replace(known)
    if known.next_at != command.tick_at:
        return (), ScheduleMoved(command.name, replace(known))
    skips = tuple(Skip(tick, SkipReason.PAUSED) for tick in command.due)
    event = ScheduleResumed(command.name, command.next_at, now, command.by, command.reason, skips, command.passed)
    resumed = replace(known)
    _resume(resumed, event)
    return (event,), resumed


# Events ----------------------------------------------------------------------------------------------------------


def apply_set(state: State, event: ScheduleSet) -> None:
    name = event.schedule.name
    known = state.schedules.get(name)
    state.schedules[name] = schedule_of(event) if known is None else _changed(known, event)
    record(state, Verb.SET_SCHEDULE, target_of(name), event)


def schedule_of(event: ScheduleSet) -> Schedule:
    return Schedule(
        event.schedule, event.revision, event.next_at, event.wall, event.at, set_by=event.by, set_reason=event.reason
    )


def _changed(known: Schedule, event: ScheduleSet) -> Schedule:
    is_moved_back = known.last_at is not None and event.next_at <= known.last_at
    return replace(
        known,
        last_at=None if is_moved_back else known.last_at,  # P10: it was decided on before its time
        spec=event.schedule,
        revision=event.revision,
        next_at=event.next_at,
        set_at=event.at,
        set_by=event.by,
        set_reason=event.reason,
    )


def apply_removed(state: State, event: ScheduleRemoved) -> None:
    known_schedule(state, event.name)
    del state.schedules[event.name]
    record(state, Verb.REMOVE_SCHEDULE, target_of(event.name), event)


def apply_paused(state: State, event: SchedulePaused) -> None:
    known_schedule(state, event.name).pause = PauseMark(event.at, event.by, event.reason)
    record(state, Verb.PAUSE_SCHEDULE, target_of(event.name), event)


def apply_resumed(state: State, event: ScheduleResumed) -> None:
    _resume(known_schedule(state, event.name), event)
    record(state, Verb.RESUME_SCHEDULE, target_of(event.name), event)


def _resume(schedule: Schedule, event: ScheduleResumed) -> None:
    if event.skips:
        schedule.last_at = event.skips[-1].tick_at
    schedule.next_at = event.next_at
    schedule.pause = None
    count_skips(schedule, event.skips, event.passed, SkipReason.PAUSED)


def known_schedule(state: State, name: str) -> Schedule:
    schedule = state.schedules.get(name)
    if schedule is None:
        raise Broken(f"an event for schedule {name!r} does not follow from what came before: there is no such schedule")
    return schedule


def target_of(name: str) -> str:
    """Return the target that an action on a schedule is recorded with."""
    return f"{RESERVED}{name}"
