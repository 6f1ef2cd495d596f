"""The lost tick: nobody is there when a schedule is due, and whoever comes next begins with the tick after it.

Guard: the next tick is in the store until it has been decided on. Setting a schedule again does not move it (P1), and
firing moves it in the record that makes its job (P2).
"""

from __future__ import annotations

import pytest

from leasemill.api.schedule_commands import fire_of, set_schedule
from leasemill.kernel.commands import DueSchedules, FireTicks, GetSchedule, TickFired
from leasemill.kernel.model import SECOND, JobSpec
from leasemill.kernel.schedule import Missed, Overlap, ScheduleSpec, tick_id
from leasemill.store.base import Store
from leasemill.testing.conformance import Harness
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, replace

HOUR = 3_600 * SECOND
HOURLY = ScheduleSpec("tidy", "0 * * * *", "UTC", JobSpec("", "q", "k"), Overlap.ALLOW)


def start(store: Store) -> list[str]:
    """What a worker does when it starts: set what its code declares, and fire what is due. Returns the jobs it made."""
    set_schedule(store, HOURLY, by="worker", reason="declared in code")
    now = store.time()
    fires = [fire_of(schedule, now) for schedule in store.run(DueSchedules(now, 10))]
    outcomes = store.run(FireTicks(fires, now))
    return [job_id for outcome in outcomes if isinstance(outcome, TickFired) for job_id in outcome.job_ids]


def deployed_over_a_tick(harness: Harness) -> tuple[list[str], str]:
    """A worker starts, is stopped, and starts again half a minute after the hour."""
    start(harness.store)
    tick = harness.clock.now() // HOUR * HOUR + HOUR
    harness.clock.advance(us=tick + 30 * SECOND - harness.clock.now())
    return start(harness.store), tick_id("tidy", tick)


def test_reproduce_without_it_a_deployment_over_the_hour_loses_the_tick(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_start_is_the_first = "    known = None\n    if command.moves is not None:\n"
    replace(
        monkeypatch,
        "leasemill.kernel.verbs.schedules",
        "    known = state.schedules.get(spec.name)\n    if command.moves is not None:\n",
        every_start_is_the_first,
    )
    made, _ = deployed_over_a_tick(harness)
    assert made == [], "the tick was to be lost"


@rule("P1", "P2")
def test_prevent_with_it_whoever_starts_next_fires_the_tick(harness: Harness) -> None:
    made, tick = deployed_over_a_tick(harness)
    assert made == [tick]


@rule("P2", "P5")
def test_recover_a_machine_that_loses_its_power_fires_every_tick(failing: FailingMachine) -> None:
    every = ScheduleSpec("tidy", "0 * * * *", "UTC", JobSpec("", "q", "k"), Overlap.ALLOW, Missed.ALL)
    set_schedule(failing.store, every, by="ada", reason="why")
    known = failing.store.run(GetSchedule("tidy"))
    assert known is not None
    made: list[str] = []
    for hours in (1, 2, 1, 3):
        failing.lose_power()
        schedule = failing.store.run(GetSchedule("tidy"))
        assert schedule is not None
        now = schedule.next_at + (hours - 1) * HOUR
        failing.clock.advance(us=now - failing.clock.now())
        (outcome,) = failing.store.run(FireTicks([fire_of(schedule, now)], now))
        assert isinstance(outcome, TickFired)
        made += outcome.job_ids
    assert made == [tick_id("tidy", known.next_at + n * HOUR) for n in range(7)]
    failing.lose_power()
    assert [job.spec.id for job in failing.store.jobs().jobs] == made
