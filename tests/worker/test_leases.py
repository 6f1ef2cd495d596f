"""Leases in a worker's hands: kept alive, lost, and what a handler learns of it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any

import pytest

from leasemill import App, Context, JobState, Limit, Worker
from leasemill.api.lease_loss import NOT_EXTENDED, LossSignal
from leasemill.errors import Broken
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, AbortReason, JobSpec
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from leasemill.worker.heartbeat import Heartbeat
from leasemill.worker.metrics import Metrics
from leasemill.worker.pacing import HURRY_EVERY_S
from leasemill.worker.run import Phase, Run
from tests.worker.support import FaultyStore, until, working

# The heartbeat alone, with a clock of its own -------------------------------------------------------------------


class Bench:
    """A heartbeat whose time a test sets, on a store whose time is the same."""

    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.store = FaultyStore(self.clock)
        self.metrics = Metrics()
        self.running: list[Run] = []
        self.lost: list[tuple[str, str | None]] = []
        self.answered = 0
        self.heartbeat = Heartbeat(
            "w",
            self.store,
            self.metrics,
            running=lambda: list(self.running),
            on_lost=self._on_lost,
            on_answered=self._on_answered,
            on_end=lambda error: None,
            monotonic=self.now,
        )

    def now(self) -> float:
        return self.clock.now() / 1_000_000

    def _on_lost(self, run: Run, reason: str | None) -> None:
        run.loss.set(reason or "expired")
        self.lost.append((run.lease.job.id, reason))

    def _on_answered(self) -> None:
        self.answered += 1

    def run(self, job_id: str, phase: Phase = Phase.RUNNING) -> Run:
        app = App(store=self.store)

        @app.job
        def noop() -> None: ...

        self.store.enqueue([JobSpec(job_id, "default", "noop")])
        sent_at = self.now()
        (lease,) = self.store.claim("w", ["default"], 1)
        run = Run(lease, noop, sent_at)
        run.phase = phase
        self.running.append(run)
        return run

    def beat_at(self, seconds: float) -> float:
        self.clock.advance(us=math.ceil(seconds * 1_000_000) - self.clock.now())
        return self.heartbeat.beat()

    def extends(self) -> list[list[str]]:
        return [[lease.job_id for lease in command.leases] for command in self.store.commands(c.Extend)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@rule("L9")
def test_leases_are_extended_together_before_a_third_of_them_has_passed(bench: Bench) -> None:
    bench.run("a")
    assert bench.beat_at(0) == pytest.approx(9)
    bench.clock.advance(s=3)
    bench.run("b")
    bench.clock.advance(s=5.5)
    bench.run("new")
    assert bench.beat_at(9) == pytest.approx(8.5 + 9)
    assert bench.extends() == [["a", "b"]]
    assert bench.beat_at(17.5) == pytest.approx(26.5)
    assert bench.extends()[1] == ["a", "b", "new"]
    assert bench.metrics.extended == 5


@pytest.mark.parametrize("interval_s", [0.5, 1, 4])
def test_a_short_interval_is_kept_and_nothing_is_looked_at_in_between(bench: Bench, interval_s: float) -> None:
    bench.heartbeat.set_interval(interval_s)
    bench.run("a")
    next_at = bench.beat_at(0)
    for beats in range(1, 6):
        assert next_at == pytest.approx(beats * interval_s)
        next_at = bench.beat_at(next_at)
        assert bench.extends() == [["a"]] * beats


def test_nothing_is_asked_when_nothing_runs(bench: Bench) -> None:
    assert bench.beat_at(100) == math.inf
    bench.run("queued", Phase.QUEUED)
    bench.run("ended", Phase.ENDED)
    assert bench.beat_at(115) == math.inf
    assert bench.extends() == []


def test_a_failed_extension_is_repeated_soon_and_the_lease_counts_from_before_it_was_sent(bench: Bench) -> None:
    run = bench.run("a")
    bench.store.fail(c.Extend, "before", "after")
    again_at = bench.beat_at(9)
    assert 9 < again_at <= 9.05
    again_at = bench.beat_at(again_at)
    assert run.loss.held_until == pytest.approx(27)
    sent_at = again_at
    bench.beat_at(sent_at)
    assert run.loss.held_until == pytest.approx(sent_at + 27)
    assert (bench.metrics.beats, bench.metrics.beats_failed) == (1, 2)
    assert bench.lost == []


def test_a_lease_that_cannot_be_extended_is_given_up_before_it_ends(bench: Bench) -> None:
    bench.run("a")
    bench.store.is_away = True
    at = 9.0
    while not bench.lost:
        next_at = bench.beat_at(at)
        assert next_at > at
        at = next_at
        assert at < 100 or bench.lost
    assert bench.lost == [("a", None)]
    assert 26.9 < bench.now() < 30


@rule("L1")
def test_a_lease_that_the_store_answers_for_without_extending_it_is_given_up_before_it_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, other = bench.run("stuck"), bench.run("other")
    extend = bench.store.extend

    def skips_locked(leases: list[c.LeaseRef]) -> list[c.ExtendOutcome]:
        done = {it.job_id: it for it in extend([lease for lease in leases if lease.job_id != "stuck"])}
        return [done.get(lease.job_id, c.Extended("stuck", stuck.lease.expires_at)) for lease in leases]

    monkeypatch.setattr(bench.store, "extend", skips_locked)
    at = 9.0
    while not bench.lost:
        next_at = bench.beat_at(at)
        assert next_at > at, "it is not asked for without a pause"
        at = next_at
        assert at < 100 or bench.lost
    assert bench.lost == [("stuck", None)]
    assert bench.now() == pytest.approx(27)
    assert other.loss.held_until > 27
    assert bench.metrics.not_extended > 1
    assert caplog.text.count("lease not extended by the store") == 1


def test_an_extension_whose_reply_was_lost_counts_from_when_it_was_asked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeat finds the row locked and reads the end that the first call had set."""
    run = bench.run("a")
    bench.store.fail(c.Extend, "after")
    again_at = bench.beat_at(9)
    until = bench.store.job("a").executions[0].expires_at  # type: ignore[union-attr]
    assert until == 39_000_000
    monkeypatch.setattr(bench.store, "extend", lambda leases: [c.Extended("a", until)])
    bench.clock.advance(s=2)
    bench.beat_at(max(again_at, 11))
    assert run.loss.held_until == pytest.approx(9 + 27)


def test_a_lost_lease_is_reported_with_the_stores_reason(bench: Bench) -> None:
    bench.run("a")
    bench.run("b")
    bench.store.cancel(["a"], by="me", reason="test")
    bench.beat_at(9)
    assert bench.lost == [("a", "cancelled")]
    assert bench.beat_at(18) < math.inf
    assert bench.extends() == [["a", "b"], ["b"]]


@rule("O10")
def test_a_cancellation_has_all_leases_extended_at_once_but_not_too_often(bench: Bench) -> None:
    bench.run("a")
    bench.run("b")
    bench.run("queued", Phase.QUEUED)
    bench.clock.advance(s=1)
    bench.store.cancel(["a"], by="me", reason="test")
    bench.heartbeat.hurry()
    assert bench.heartbeat.wakes_at <= bench.now()
    assert bench.beat_at(1) == pytest.approx(10)
    assert (bench.extends(), bench.lost) == ([["a", "b"]], [("a", "cancelled")])
    bench.store.cancel(["b"], by="me", reason="test")
    bench.heartbeat.hurry()
    assert bench.beat_at(1.1) == pytest.approx(1 + HURRY_EVERY_S)
    assert bench.extends() == [["a", "b"]]
    bench.store.fail(c.Extend, "before")
    again_at = bench.beat_at(1 + HURRY_EVERY_S)
    assert bench.lost == [("a", "cancelled")]
    bench.beat_at(max(again_at, 1 + 2 * HURRY_EVERY_S))
    assert bench.lost == [("a", "cancelled"), ("b", "cancelled")]


def test_the_lease_of_a_handler_that_outran_its_timeout_on_a_blocked_loop_is_not_extended(bench: Bench) -> None:
    run = bench.run("a")
    run.timeout_at = 10
    bench.beat_at(9)
    bench.beat_at(27)
    assert bench.beat_at(41) == math.inf
    assert bench.extends() == [["a"], ["a"]]


def test_a_report_waits_for_the_extension_of_its_lease(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    extended, other = bench.run("a"), bench.run("b", Phase.ENDED)
    reports: list[Any] = [(run, c.AckReport(run.lease.job.id, run.lease.token)) for run in (extended, other)]
    seen: list[Any] = []
    extend = bench.store.extend

    def slow_extend(leases: Any) -> Any:
        seen.append(bench.heartbeat.admit(reports))
        return extend(leases)

    monkeypatch.setattr(bench.store, "extend", slow_extend)
    bench.beat_at(9)
    assert seen == [([reports[1]], [reports[0]])]
    assert bench.answered == 1
    assert bench.heartbeat.admit(reports) == (reports, [])


# In a worker ----------------------------------------------------------------------------------------------------


LEASE_S = 10
"""Of the store's clock, which tests move; a worker stands still for nearly as long before it gives a lease up."""


class Held:
    """The lease of the one job there is, by the store's record."""

    def __init__(self, store: FaultyStore, clock: ManualClock) -> None:
        self._store, self._clock = store, clock

    def half_over(self) -> None:
        self._clock.advance(s=LEASE_S / 2)

    def is_full(self) -> bool:
        """Whether it was extended since the clock moved; an extension that was on its way then does not count."""
        (lease,) = self._store.leases()
        return lease.expires_at == self._clock.now() + LEASE_S * SECOND


@rule("L9")
async def test_a_job_that_runs_longer_than_its_lease_keeps_it(app: App, store: FaultyStore, clock: ManualClock) -> None:
    held = Held(store, clock)

    @app.job(lease=LEASE_S, timeout=600)
    async def long() -> None:
        for _ in range(5):
            held.half_over()
            await until(held.is_full)

    handle = long.enqueue()
    async with working(app, heartbeat_interval=0.2) as worker:
        await handle.aresult(60)
    assert worker.metrics.extended >= 5
    assert (handle.record().attempt, worker.metrics.lost) == (1, 0)
    assert handle.record().refusals == ()


@rule("L9")
async def test_a_handler_that_blocks_the_event_loop_for_longer_than_its_lease_keeps_its_job(
    app: App, store: FaultyStore, clock: ManualClock
) -> None:
    held = Held(store, clock)

    @app.job(lease=LEASE_S, timeout=600)
    async def blocking() -> None:
        deadline = time.monotonic() + 30
        for _ in range(5):
            held.half_over()
            while not held.is_full() and time.monotonic() < deadline:
                time.sleep(0.001)  # noqa: ASYNC251 (what must not hurt)

    handle = blocking.enqueue()
    async with working(app, heartbeat_interval=0.2) as worker:
        await handle.aresult(60)
    assert worker.metrics.extended >= 5
    assert (handle.record().attempt, worker.metrics.lost) == (1, 0)


@rule("O1", "O10")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_whose_job_is_cancelled_is_stopped_and_its_report_dropped(
    app: App, store: FaultyStore, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    saw: list[str] = []

    @app.job(lease=3_600, name="waits_async")  # the next heartbeat is far away
    async def waits_async(ctx: Context) -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            saw.append("cancelled")
            raise

    @app.job(lease=3_600, name="waits_sync")
    def waits_sync(ctx: Context) -> None:
        assert ctx.lost.wait(30)
        saw.append(f"lost: {ctx.lost.reason}")

    handle = (waits_async if is_async else waits_sync).enqueue()
    async with working(app) as worker:
        await until(lambda: worker.metrics.running, limit_s=30)
        store.cancel([handle.id], by="me", reason="not needed")
        await until(lambda: worker.metrics.lost and not worker.metrics.running, limit_s=30)
    assert saw == ["cancelled" if is_async else "lost: cancelled"]
    assert handle.status() is JobState.CANCELLED
    assert (store.commands(c.Ack), store.commands(c.Nack)) == ([], [])
    assert "lease lost (cancelled)" in caplog.text


@rule("C7")
async def test_a_worker_cut_off_from_the_store_stops_its_handlers_before_others_may_start(
    app: App, store: FaultyStore
) -> None:
    stopped: list[bool] = []

    @app.job(lease=3, timeout=60)
    async def cut_off(ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        store.is_away = True  # nothing is extended from here on, however late this runs
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(True)

    handle = cut_off.enqueue()
    async with working(app) as worker:
        await until(lambda: stopped)
        assert worker.metrics.lost == 1
        store.is_away = False
        await handle.aresult(30)
    assert handle.record().attempt == 2


async def test_a_handler_in_a_thread_sees_its_lease_end_while_the_store_is_unavailable(
    app: App, store: FaultyStore
) -> None:
    loss = LossSignal(time.monotonic() + 0.02)
    assert not loss.is_set()
    assert loss.wait(30)
    assert loss.reason == NOT_EXTENDED


@rule("X8")
def test_a_loss_that_a_handler_has_seen_is_not_taken_back_by_a_late_extension() -> None:
    loss = LossSignal(time.monotonic())
    assert loss.is_set()
    loss.held_until = time.monotonic() + 60
    assert loss.is_set()
    assert loss.wait(0)


def test_waiting_for_a_loss_ends_in_time_and_sees_an_extension() -> None:
    loss = LossSignal(time.monotonic() + 60)
    assert not loss.wait(0.001)
    threading.Timer(0.01, loss.set, ["cancelled"]).start()
    assert loss.wait(30)
    assert loss.reason == "cancelled"
    assert loss.wait(0)


@rule("L5")
async def test_a_report_that_comes_too_late_is_refused_on_record_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    store = FaultyStore(clock)
    app = App(store=store)

    @app.job
    async def late(ctx: Context) -> None:
        if ctx.attempt == 1:
            store.pause("default", by="me", reason="nothing is granted before the report comes")
            clock.advance(s=31)

    handle = late.enqueue()
    async with working(app, worker_id="zombie") as worker:
        await until(lambda: worker.metrics.refused)
        store.resume("default", by="me", reason="go on")
        await until(lambda: worker.metrics.succeeded)
    (refusal,) = handle.record().refusals
    assert (refusal.worker, refusal.attempt, refusal.verb) == ("zombie", 1, "ack")
    assert worker.metrics.refused == 1
    assert "ack refused, lease not held (expired)" in caplog.text


async def test_a_broken_store_stops_the_worker_with_its_error(app: App, store: FaultyStore) -> None:
    @app.job(lease=0.1, timeout=5)
    async def long() -> None:
        await asyncio.sleep(5)

    long.enqueue()
    worker = Worker(app, handle_signals=False)
    task = asyncio.create_task(worker.run())
    await until(lambda: worker.metrics.running)
    store.refuses = Broken("the log is damaged at 7")
    with pytest.raises(Broken, match="damaged"):
        await asyncio.wait_for(task, 30)


@rule("X8", "T3")
async def test_a_job_is_not_released_while_its_thread_runs_and_its_place_stays_taken(
    clock: ManualClock, store: FaultyStore, app: App
) -> None:
    may_end = threading.Event()

    @app.job(lease=1, timeout=60, limit=Limit(1))
    def deaf() -> None:
        may_end.wait(60)

    first, second = deaf.enqueue(), deaf.enqueue()
    async with working(app) as worker:
        try:
            await until(lambda: worker.metrics.lost, "the lease to be lost: the clock stands, so it is not extended")
            assert (store.commands(c.Release), first.status()) == ([], JobState.LEASED)
            assert store.claim("other", ["default"], 1) == [], "the place under the limit is taken"
            store.pause("default", by="ann", reason="nothing runs again")
        finally:
            may_end.set()
        await until(lambda: worker.metrics.running == 0, "the thread")
    assert (first.record().state, first.record().retries) == (JobState.READY, 0)
    assert first.record().executions[0].reason is AbortReason.RELEASED
    assert second.record().attempt == 0
