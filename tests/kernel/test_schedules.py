"""Schedules in the kernel: random histories, broken states, and clocks that jump."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

import msgspec
import pytest

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent, JobEnqueued, ScheduleFired, ScheduleRemoved
from leasemill.kernel.image import digest
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import apply_all, check, run
from leasemill.kernel.model import SECOND, JobSpec
from leasemill.kernel.schedule import (
    OPEN_KEPT,
    Overlap,
    Schedule,
    ScheduleSpec,
    Skip,
    SkipReason,
    TickFire,
    jitter_us,
    tick_id,
)
from leasemill.kernel.state import PLAIN_FORMAT, RULES_FORMAT, State
from leasemill.testing.rules import rule
from tests.crash.walk import Walk
from tests.crash.walk_schedules import MINUTE, ScheduleWalk
from tests.kernel.world import reloaded

NOW = 1_700_000_000 * SECOND
START = 1_900_000_800 * SECOND


@rule("P2", "P3", "P4", "P6")
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_a_tick_is_decided_on_once(seed: int) -> None:
    source, state, twin = random.Random(seed), State(), State()
    walk, ticking, events, now = Walk(source), ScheduleWalk(source), list[AnyEvent](), NOW
    latest: dict[str, int] = {}
    made: dict[str, int] = {}
    for step in range(500):
        command = source.choice((walk, ticking)).next(state)
        try:
            check(command)
            new, _ = run(state, command, now)
        except LeasemillError:
            continue
        for event in new:
            if isinstance(event, ScheduleFired):
                assert event.tick_at > latest.get(event.name, 0)
                assert event.next_at > event.tick_at
                latest[event.name] = event.tick_at
            if isinstance(event, ScheduleRemoved):
                latest.pop(event.name, None)
            if isinstance(event, JobEnqueued) and event.job.id.startswith("cron/"):
                made[event.job.id] = made.get(event.job.id, 0) + 1
        if step % 10 == 0:
            assert violations(state) == [], (seed, step, command)
        events += new
        now += source.choice((0, 1_000, 3 * SECOND))
        if step % 300 == 0:
            assert digest(reloaded(state)) == digest(state)
    apply_all(twin, events)
    assert digest(twin) == digest(state)
    assert len(made) > 20


def scheduled(**fields: object) -> State:
    state = State()
    spec = msgspec.structs.replace(ScheduleSpec("tidy", "* * * * *", "UTC", JobSpec("", "q", "k")), **fields)
    run(state, c.SetSchedule(spec, START, START - 1, "ada", "why"), NOW)
    return state


def schedule(state: State) -> Schedule:
    return state.schedules["tidy"]


def fire(state: State, *due: int, now: int | None = None, next_at: int | None = None) -> c.TickOutcome:
    known = schedule(state)
    fired = TickFire("tidy", known.revision, known.next_at, due, next_at or due[-1] + MINUTE)
    now = due[-1] if now is None else now
    check(command := c.FireTicks([fired], now))
    return run(state, command, now)[1][0]


def _misplace(state: State) -> None:
    state.schedules["other"] = schedule(state)


def _repeat(state: State) -> None:
    schedule(state).last_at = schedule(state).next_at


def _keep_all(state: State) -> None:
    schedule(state).skips = (Skip(1, SkipReason.MISSED),) * 21


def _forget_a_skip(state: State) -> None:
    schedule(state).skips = (Skip(1, SkipReason.MISSED),)


def _wait_for_another(state: State) -> None:
    schedule(state).open_ids = ("cron/other/1",)


def _hide(state: State) -> None:
    state.format = PLAIN_FORMAT


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (_misplace, "not found by its name"),
        (_repeat, "again"),
        (_keep_all, "more than its latest"),
        (_forget_a_skip, "fewer skipped"),
        (_wait_for_another, "not its own"),
        (_hide, "format"),
    ],
)
def test_a_broken_schedule_is_noticed(break_it: Callable[[State], None], sentence: str) -> None:
    state = scheduled()
    assert violations(state) == []
    break_it(state)
    assert any(sentence in violation for violation in violations(state))


def test_a_schedule_raises_the_format() -> None:
    assert State().format == PLAIN_FORMAT
    assert scheduled().format == RULES_FORMAT


@rule("P3")
def test_a_clock_that_was_set_back_fires_nothing_again() -> None:
    state = scheduled()
    assert isinstance(fire(state, START), c.TickFired)
    for now in (START - 3_600 * SECOND, START - 365 * 86_400 * SECOND, 0):
        known = schedule(state)
        command = c.FireTicks([TickFire("tidy", 1, known.next_at, (known.next_at,), known.next_at + MINUTE)], now)
        assert run(state, command, now) == ([], [c.ScheduleMoved("tidy", known)])


@rule("P3", "P5")
def test_a_clock_that_was_set_forward_fires_one_tick_and_goes_on_from_there() -> None:
    state = scheduled()
    ticks = tuple(range(START, START + 3_600 * SECOND + 1, MINUTE))
    outcome = fire(state, *ticks)
    assert isinstance(outcome, c.TickFired)
    assert outcome.job_ids == (tick_id("tidy", ticks[-1]),)
    assert schedule(state).next_at == ticks[-1] + MINUTE


@rule("P6")
def test_jobs_that_are_not_ended_are_remembered_up_to_a_number() -> None:
    state = scheduled(overlap=Overlap.ALLOW)
    for n in range(OPEN_KEPT + 5):
        fire(state, START + n * MINUTE)
    assert len(schedule(state).open_ids) == OPEN_KEPT
    assert violations(state) == []


@rule("P8")
def test_jitter_depends_on_the_name_and_the_tick_alone() -> None:
    def of(name: str, tick: int, jitter: int = 30 * SECOND) -> int:
        spec = ScheduleSpec(name, "* * * * *", "UTC", JobSpec("", "q", "k"), jitter_us=jitter)
        return jitter_us(spec, tick, tick + MINUTE)

    assert of("tidy", START) == of("tidy", START) != of("poll", START)
    assert of("tidy", START) == 29_152_172, "a change of this number moves jobs of schedules that exist"
    assert of("tidy", START, 0) == 0
    spread = [of(f"schedule-{n}", START) for n, _ in zip(count(), range(500), strict=False)]
    assert min(spread) < 3 * SECOND
    assert max(spread) > 27 * SECOND
