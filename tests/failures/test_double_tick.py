"""The double tick: two schedulers find the same tick due, or one that was paused for long fires what others have fired.

Guard: firing compares the schedule's next tick with the one it was computed for, and moves it, in one step (P2, P3).
"""

from __future__ import annotations

import pytest

from leasemill.api.schedule_commands import fire_of, set_schedule
from leasemill.kernel.commands import FireTicks, GetSchedule, ScheduleMoved, TickFire, TickFired
from leasemill.kernel.model import SECOND, JobSpec
from leasemill.kernel.schedule import Overlap, ScheduleSpec
from leasemill.store.base import Store
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.steps import acked, claim_one, purge
from leasemill.testing.rules import rule
from tests.failures.support import FailingMachine, replace

HOUR = 3_600 * SECOND
HOURLY = ScheduleSpec("tidy", "0 * * * *", "UTC", JobSpec("", "q", "k"), Overlap.ALLOW)


def due(store: Store) -> TickFire:
    """The next tick, as a scheduler computes it when it is due."""
    schedule = store.run(GetSchedule("tidy"))
    assert schedule is not None
    return fire_of(schedule, schedule.next_at)


def runs(harness: Harness) -> int:
    """Two schedulers compute the same tick; the second is stopped for so long that its job is forgotten."""
    set_schedule(harness.store, HOURLY, by="ada", reason="why")
    first, second = due(harness.store), due(harness.store)
    harness.clock.advance(us=first.due[-1] - harness.clock.now())
    count = 0
    for fire in (first, second):
        (outcome,) = harness.store.run(FireTicks([fire], fire.due[-1]))
        if isinstance(outcome, TickFired):
            lease = claim_one(harness, queue="q")
            acked(harness, lease)
            purge(harness, lease.job.id)
            count += 1
    return count


def test_reproduce_without_it_the_tick_runs_twice(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "leasemill.kernel.schedule", "        and schedule.next_at == fire.tick_at\n", "")
    replace(
        monkeypatch, "leasemill.kernel.verbs.ticks", "    if event.next_at <= schedule.next_at:\n", "    if False:\n"
    )
    assert runs(harness) == 2, "the tick was to be fired twice"


@rule("P2", "P3", "P4")
def test_prevent_with_it_the_second_finds_the_schedule_moved(harness: Harness) -> None:
    assert runs(harness) == 1


@rule("P2", "P3")
def test_recover_a_scheduler_that_repeats_after_a_crash_changes_nothing(failing: FailingMachine) -> None:
    set_schedule(failing.store, HOURLY, by="ada", reason="why")
    for count in range(1, 5):
        fire = due(failing.store)
        failing.clock.advance(us=fire.due[-1] - failing.clock.now())
        command = FireTicks([fire], fire.due[-1])
        failing.store.run(command)
        failing.lose_power()  # the reply is lost, the caller does not know
        (outcome,) = failing.store.run(command)
        assert isinstance(outcome, ScheduleMoved)
        assert len(failing.store.jobs().jobs) == count
