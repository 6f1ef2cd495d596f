"""Ticks make jobs: by time, by hand, or afterwards. Rules P2 to P6.

A tick is decided on once: only by a caller that knows the schedule as it is. What must never happen here: a tick that
is over and neither made a job nor was counted as skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from leasemill.errors import Broken, Invalid
from leasemill.kernel.bounds import BATCH_ITEMS, LATEST, check_number, check_string
from leasemill.kernel.command import Command, Decision, Do
from leasemill.kernel.events import ScheduleBackfilled, ScheduleFired, ScheduleFiredByHand
from leasemill.kernel.model import JobState, QueueMode, Verb
from leasemill.kernel.schedule import (
    CAUGHT_UP,
    Plan,
    Schedule,
    Skip,
    SkipReason,
    TickFire,
    count_skips,
    hand_id,
    is_next,
    job_of_tick,
    made,
    plan,
    queues_of,
    tick_id,
)
from leasemill.kernel.state import State
from leasemill.kernel.transitions.actions import check_operator, record
from leasemill.kernel.verbs import enqueue
from leasemill.kernel.verbs.enqueue import Enqueued, EnqueueOutcome
from leasemill.kernel.verbs.schedules import ScheduleMoved, check_due, check_named_at, known_schedule, target_of

__all__ = ["Backfill", "FireNow", "FireTicks", "TickFire", "TickFired", "TickOutcome"]


class TickFired(Struct, frozen=True):
    """The ticks are decided on: these made jobs, the others are skipped, and `next_at` is the next one."""

    name: str
    job_ids: tuple[str, ...]
    skips: tuple[Skip, ...]
    next_at: int


TickOutcome: TypeAlias = TickFired | ScheduleMoved


class FireTicks(Command[list[TickOutcome]], frozen=True):
    """P2: each happens only if the schedule is as the caller knows it and its ticks are due by the store's clock.

    `wall`: the store's time, as the caller read it. Only servers of earlier versions decide by it."""

    fires: Sequence[TickFire]
    wall: int

    @property
    def most_jobs(self) -> int:
        return sum(len(fire.due) for fire in self.fires)


class FireNow(Command[EnqueueOutcome | None], frozen=True):
    """A job of the schedule at once, whatever its next tick; `wall`, the store's time as the caller read it,
    distinguishes it from others, and repeats it."""

    name: str
    wall: int
    by: str
    reason: str

    @property
    def most_jobs(self) -> int:
        return 1


class Backfill(Command[list[EnqueueOutcome] | ScheduleMoved], frozen=True):
    """Jobs for ticks that are over. A tick whose job exists makes no other; the next tick stays unchanged."""

    name: str
    ticks: tuple[int, ...]
    by: str
    reason: str

    @property
    def most_jobs(self) -> int:
        return len(self.ticks)


# Checks --------------------------------------------------------------------------------------------------------


def check_fires(command: FireTicks) -> None:
    if command.most_jobs > CAUGHT_UP or len(command.fires) > BATCH_ITEMS:
        raise Invalid(f"{command.most_jobs:,} ticks in one call; at most {CAUGHT_UP:,} are taken: send several calls")
    for fire in command.fires:
        check_named_at(fire.name, fire.tick_at)
        check_number("passed", fire.passed, 0, LATEST)
        check_due(fire.tick_at, fire.due, fire.passed, fire.next_at)


def check_fire_now(command: FireNow) -> None:
    check_string("schedule", command.name)
    check_operator(command)
    check_number("wall", command.wall, 0, LATEST)


def check_backfill(command: Backfill) -> None:
    check_string("schedule", command.name)
    check_operator(command)
    if len(command.ticks) > CAUGHT_UP:
        raise Invalid(f"{len(command.ticks):,} ticks in one call; at most {CAUGHT_UP:,} are taken: send several calls")
    for tick in command.ticks:
        check_number("tick", tick, 0, LATEST)


# Decisions -----------------------------------------------------------------------------------------------------


def fire_steps(state: State, command: FireTicks, now: int, do: Do) -> list[TickOutcome]:
    return [_fire(state, fire, now, do) for fire in command.fires]


def _fire(state: State, fire: TickFire, now: int, do: Do) -> TickOutcome:
    schedule = state.schedules.get(fire.name)
    if schedule is None or not is_next(schedule, fire, now):
        return ScheduleMoved(fire.name, None if schedule is None else replace(schedule))
    queues = [state.queues.get(name) for name in queues_of(schedule.spec.call)]
    is_refused = any(queue is not None and queue.mode is QueueMode.ACQUIRE for queue in queues)
    planned = plan(schedule, fire, now, lambda job_id: job_state(state, job_id), is_refused=is_refused)
    outcomes = [do(enqueue.decide(state, job, now)) for job in planned.jobs]
    return do(decide_fired(fire, planned, outcomes, now))


def job_state(state: State, job_id: str) -> JobState | None:
    job = state.jobs.get(job_id)
    return None if job is None else job.state


def decide_fired(fire: TickFire, planned: Plan, outcomes: Sequence[EnqueueOutcome], now: int) -> Decision[TickOutcome]:
    """P2: one fact, once its jobs are enqueued. P4: a job that is known counts as fired."""
    fired: list[str] = []
    skips = list(planned.skips)
    for tick, job, outcome in zip(planned.ticks, planned.jobs, outcomes, strict=True):
        if outcome.job_id == job.id:
            fired.append(job.id)
        else:
            skips.append(Skip(tick, SkipReason.UNIQUE, outcome.job_id))
    skips.sort(key=lambda skip: skip.tick_at)
    event = ScheduleFired(
        fire.name, fire.due[-1], fire.next_at, now, tuple(fired), tuple(planned.open_ids), tuple(skips), fire.passed
    )
    return (event,), TickFired(fire.name, event.job_ids, event.skips, fire.next_at)


def fire_now_steps(state: State, command: FireNow, now: int, do: Do) -> EnqueueOutcome | None:
    schedule = state.schedules.get(command.name)
    if schedule is None:
        return None
    for queue in queues_of(schedule.spec.call):
        enqueue.check_queue(state, queue)
    job = job_of_tick(schedule.spec, hand_id(command.name, command.wall))
    outcome = do(enqueue.decide(state, job, now))
    return do(decide_fired_by_hand(command, outcome, now))


def decide_fired_by_hand(command: FireNow, outcome: EnqueueOutcome, now: int) -> Decision[EnqueueOutcome]:
    if not isinstance(outcome, Enqueued):
        return (), outcome
    return (ScheduleFiredByHand(command.name, now, command.by, command.reason, outcome.job_id),), outcome


def backfill_steps(state: State, command: Backfill, now: int, do: Do) -> list[EnqueueOutcome] | ScheduleMoved:
    schedule = state.schedules.get(command.name)
    if schedule is None or not may_backfill(schedule, command):
        return ScheduleMoved(command.name, None if schedule is None else replace(schedule))
    for queue in queues_of(schedule.spec.call):
        enqueue.check_queue(state, queue)
    jobs = [job_of_tick(schedule.spec, tick_id(command.name, tick)) for tick in command.ticks]
    outcomes = [do(enqueue.decide(state, job, now)) for job in jobs]
    return do(decide_backfilled(command, outcomes, now))


def may_backfill(schedule: Schedule, command: Backfill) -> bool:
    """The next tick and those after it are made by time."""
    return all(tick < schedule.next_at for tick in command.ticks)


def decide_backfilled(
    command: Backfill, outcomes: Sequence[EnqueueOutcome], now: int
) -> Decision[list[EnqueueOutcome] | ScheduleMoved]:
    new = tuple(outcome.job_id for outcome in outcomes if isinstance(outcome, Enqueued))
    answer = list(outcomes)
    if not new:
        return (), answer
    return (ScheduleBackfilled(command.name, now, command.by, command.reason, new),), answer


# Events --------------------------------------------------------------------------------------------------------


def apply_fired(state: State, event: ScheduleFired) -> None:
    schedule = known_schedule(state, event.name)
    if event.next_at <= schedule.next_at:
        raise Broken(f"ScheduleFired for {event.name!r} does not follow from what came before: its time does not rise")
    schedule.last_at, schedule.next_at = event.tick_at, event.next_at  # P3
    made(schedule, event.job_ids, event.open_ids)
    count_skips(schedule, event.skips, event.passed, SkipReason.MISSED)


def apply_fired_by_hand(state: State, event: ScheduleFiredByHand) -> None:
    schedule = known_schedule(state, event.name)
    made(schedule, [event.job_id], schedule.open_ids)
    record(state, Verb.FIRE, target_of(event.name), event)


def apply_backfilled(state: State, event: ScheduleBackfilled) -> None:
    known_schedule(state, event.name).fired += len(event.job_ids)
    record(state, Verb.BACKFILL, target_of(event.name), event)
