"""How many jobs are held ahead of their slots, by what was measured."""

from __future__ import annotations

import asyncio

import pytest

from leasemill import App
from leasemill.kernel.model import JobState
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from leasemill.worker import pacing
from leasemill.worker.prefetch import Prefetch
from tests.worker.support import FaultyStore, until, working


class Measured:
    """A `Prefetch` on a clock that moves when told to."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self.prefetch = Prefetch(lambda: self._clock.now() / 1_000_000)

    def pass_s(self, seconds: float) -> None:
        self._clock.advance(us=int(seconds * 1_000_000))

    def run(self, jobs_per_s: int, seconds: float, round_trip_s: float = 0.002) -> None:
        """Jobs end at this rate, and are claimed every 10 ms."""
        for _ in range(int(seconds * 100)):
            self.pass_s(0.01 - round_trip_s)
            sent_at = self._clock.now() / 1_000_000
            self.pass_s(round_trip_s)
            self.prefetch.ended_count += jobs_per_s // 100
            self.prefetch.answered(sent_at)


@rule("C9")
@pytest.mark.parametrize("jobs_per_s", [100, 1_000, 20_000])
@pytest.mark.parametrize("round_trip_s", [0.0001, 0.002, 0.009])
def test_no_more_is_held_than_a_tenth_of_a_second_runs_however_slow_the_store_is(
    jobs_per_s: int, round_trip_s: float
) -> None:
    measured = Measured()
    measured.run(jobs_per_s, 3, round_trip_s)
    held = measured.prefetch.wanted(pacing.PREFETCH_MOST)
    assert held <= jobs_per_s * pacing.PREFETCH_LONGEST_S
    assert measured.prefetch.too_many(held) == 0


@rule("C9")
def test_nothing_is_held_ahead_before_anything_has_ended() -> None:
    measured = Measured()
    assert measured.prefetch.wanted(pacing.PREFETCH_MOST) == 0
    assert measured.prefetch.too_many(3) == 3


@rule("C9")
def test_handlers_that_become_slow_make_too_many_of_what_was_not() -> None:
    measured = Measured()
    measured.run(20_000, 3)
    held = measured.prefetch.wanted(pacing.PREFETCH_MOST)
    assert held > 100
    measured.pass_s(0.1)
    assert measured.prefetch.too_many(held) == 0  # no more than a hiccup
    measured.pass_s(0.8)
    assert measured.prefetch.too_many(held) > held / 2
    measured.pass_s(5)
    assert measured.prefetch.too_many(held) == held


@rule("C9")
def test_handlers_that_become_quick_again_are_given_more() -> None:
    measured = Measured()
    measured.run(20_000, 1)
    quick = measured.prefetch.wanted(pacing.PREFETCH_MOST)
    measured.run(100, 2)
    assert measured.prefetch.wanted(pacing.PREFETCH_MOST) < quick / 50
    measured.run(20_000, 1)
    assert measured.prefetch.wanted(pacing.PREFETCH_MOST) == pytest.approx(quick, rel=0.1)


@rule("C9")
async def test_jobs_that_will_have_no_slot_soon_are_given_back_before_they_have_waited_long(
    app: App, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience of the jobs themselves never ends here: what is given back is so by the pace alone."""
    monkeypatch.setattr(pacing, "patience_s", lambda _lease_s: 3_600.0)
    gate = asyncio.Event()

    @app.job
    async def quick_then_slow(number: int) -> None:
        if number >= 500:
            await gate.wait()

    quick_then_slow.enqueue_many(quick_then_slow.call(number) for number in range(1_000))
    async with working(app, concurrency=2) as worker:
        await until(lambda: worker.metrics.running == 2 and worker.metrics.released > 0 and worker.metrics.queued == 0)
        await until(lambda: store.totals().counts[JobState.LEASED] == 2)
        assert worker.metrics.lost == 0
        gate.set()
        await until(lambda: worker.metrics.succeeded == 1_000)
