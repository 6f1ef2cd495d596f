"""What a worker does now and then: the reaper, its presence, the queues' policies."""

from __future__ import annotations

import logging
import threading
import time

import msgspec
import pytest

from leasemill import App, Context, JobState, JobType
from leasemill.errors import Broken, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, Policy
from leasemill.store.presence import MemoryPresence
from leasemill.store.worker_records import WorkerRecord, decode_record, encode_record
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from leasemill.worker.housekeeping import Chore, Housekeeping
from leasemill.worker.metrics import Metrics
from leasemill.worker.reaper import Reaper
from tests.worker.support import FaultyStore, until, working


def record_of(worker: str, published_at: float = 0.0) -> WorkerRecord:
    return WorkerRecord(worker, "host", 7, 0.0, published_at, 2.0, {"default": 1}, 10, False, [], {})


# The reaper -----------------------------------------------------------------------------------------------------


@rule("L7")
def test_the_reaper_recovers_jobs_and_counts_how_long_they_were_stuck(
    clock: ManualClock, store: FaultyStore, noop: JobType[[], None]
) -> None:
    handles = noop.enqueue_many(noop.call() for _ in range(3))
    store.claim("dead", ["default"], 2)
    metrics = Metrics()
    reaper = Reaper("me", store, metrics)
    reaper.run()
    assert (metrics.reaper_runs, metrics.reaper_recovered) == (1, 0)
    clock.advance(s=34)
    reaper.run()
    assert (metrics.reaper_runs, metrics.reaper_recovered) == (2, 2)
    assert metrics.reaper_stuck_seconds == pytest.approx(8)
    assert metrics.reaper_stuck_seconds_max == pytest.approx(4)
    assert {handle.status() for handle in handles} == {JobState.READY}


@rule("L7")
def test_what_a_claim_recovers_is_counted_and_logged_too(
    clock: ManualClock, store: FaultyStore, noop: JobType[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    noop.enqueue_many(noop.call() for _ in range(3))
    store.claim("dead", ["default"], 3)
    metrics = Metrics()
    reaper = Reaper("me", store, metrics)
    clock.advance(s=31)
    assert len(store.claim("me", ["default"], 2)) == 2
    assert metrics.reaper_recovered == 3
    assert metrics.reaper_stuck_seconds == pytest.approx(3)
    assert len([it for it in caplog.records if "lease of worker dead" in it.message]) == 3
    reaper.run()
    assert (metrics.reaper_runs, metrics.reaper_recovered, metrics.reaper_recovered_last_run) == (1, 3, 0)
    reaper.close()
    clock.advance(s=31)
    store.expire()
    assert metrics.reaper_recovered == 3


def test_more_than_one_batch_is_recovered_in_one_run(
    clock: ManualClock, store: FaultyStore, noop: JobType[[], None]
) -> None:
    noop.enqueue_many(noop.call() for _ in range(2_500))
    store.claim("dead", ["default"], 2_500)
    clock.advance(s=31)
    metrics = Metrics()
    Reaper("me", store, metrics).run()
    assert metrics.reaper_recovered == 2_500


def test_a_dead_worker_is_noticed_logged_and_counted_by_one(
    clock: ManualClock, store: FaultyStore, noop: JobType[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    noop.enqueue()
    store.claim("dead", ["default"], 1)
    now = [0.0]
    store.presence = presence = MemoryPresence(lambda: now[0])
    for worker, published_at in (("me", 50.0), ("dead", 100.0), ("alive", 120.0)):
        now[0] = published_at
        presence.publish(worker, encode_record(record_of(worker)))
    now[0] = 121.0
    presence.publish("newer", b'{"of another version":1}')
    clock.advance(s=31)
    metrics = [Metrics(), Metrics()]
    for name, counted in zip(("me", "you"), metrics, strict=True):
        Reaper(name, store, counted).run()
    assert [counted.dead_workers for counted in metrics] == [1, 1], "you counts me, which is silent too"
    assert {worker for worker, _, _ in presence.records()} == {"alive", "newer"}
    (line,) = [record for record in caplog.records if "worker dead (host host, pid 7)" in record.message]
    assert line.message.endswith("is dead or stopped: last seen 21 s ago, 1 of its leases expired")
    assert line.levelno == logging.ERROR


@rule("L8")
@pytest.mark.parametrize("behind_s", [20.0, -20.0])
def test_a_live_worker_of_a_machine_with_a_wrong_clock_is_not_declared_dead(
    store: FaultyStore, behind_s: float
) -> None:
    metrics = Metrics()
    for _ in range(3):
        store.presence.publish("other", encode_record(record_of("other", time.time() - behind_s)))
        Reaper("me", store, metrics).run()
    assert metrics.dead_workers == 0
    assert [worker for worker, _, _ in store.presence.records()] == ["other"]


# Chores ---------------------------------------------------------------------------------------------------------


def chores_of(now: list[float], *chores: Chore) -> Housekeeping:
    return Housekeeping(
        "w", list(chores), Metrics(), jitter=lambda: 1.0, on_end=lambda error: None, monotonic=lambda: now[0]
    )


def test_each_chore_is_done_at_its_own_interval() -> None:
    now, done = [0.0], []
    often = Chore("often", lambda: 2.0, lambda: done.append(("often", now[0])))
    seldom = Chore("seldom", lambda: 5.0, lambda: done.append(("seldom", now[0])))
    housekeeping = chores_of(now, often, seldom)
    while now[0] < 9:
        now[0] += housekeeping.round()
    assert done == [("often", 0), ("seldom", 0), ("often", 2), ("often", 4), ("seldom", 5), ("often", 6), ("often", 8)]


def test_a_chore_whose_interval_becomes_shorter_is_due_sooner() -> None:
    now, done, interval_s = [0.0], [], [100.0]
    housekeeping = chores_of(now, Chore("reaper", lambda: interval_s[0], lambda: done.append(now[0])))
    assert housekeeping.round() == 100
    interval_s[0] = 3.0
    now[0] += 1
    assert housekeeping.round() == 2
    now[0] += 2
    housekeeping.round()
    assert done == [0, 3]


@pytest.mark.parametrize("error", [Unavailable("away"), OSError("no space")])
def test_a_chore_that_fails_is_done_again_next_time(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    now, calls = [0.0], []

    def fails_once() -> None:
        calls.append(now[0])
        if len(calls) == 1:
            raise error

    housekeeping = chores_of(now, Chore("reaper", lambda: 1.0, fails_once))
    now[0] += housekeeping.round()
    housekeeping.round()
    assert calls == [0, 1]
    assert "reaper postponed" in caplog.text


def test_a_chore_that_fails_again_and_again_is_logged_once_until_it_was_done(caplog: pytest.LogCaptureFixture) -> None:
    now, is_away = [0.0], [True]

    def run() -> None:
        if is_away[0]:
            raise Unavailable("away")

    housekeeping = chores_of(now, Chore("reaper", lambda: 1.0, run))
    for is_away[0] in [True, True, True, False, True, True]:
        now[0] += housekeeping.round()
    assert caplog.messages == ["reaper postponed, will retry: the store is unavailable: away"] * 2


def test_a_broken_store_ends_housekeeping_and_is_reported() -> None:
    ended: list[BaseException | None] = []

    def breaks() -> None:
        raise Broken("damaged")

    housekeeping = Housekeeping(
        "w", [Chore("reaper", lambda: 1.0, breaks)], Metrics(), jitter=lambda: 1.0, on_end=ended.append
    )
    housekeeping.start()
    deadline = time.monotonic() + 30
    while not ended and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    assert isinstance(ended[0], Broken)


# Presence -------------------------------------------------------------------------------------------------------


def test_a_record_knows_when_it_is_stale() -> None:
    record = record_of("w")
    assert not record.is_stale(8.0)
    assert record.is_stale(10.0)
    assert decode_record(encode_record(record)) == record


async def test_a_worker_shows_what_it_runs_and_how_far_it_is(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.worker.presence.PRESENCE_S", 0.01)
    may_end = threading.Event()

    @app.job
    def imports(ctx: Context) -> None:
        ctx.progress(3, 10, "rows")
        may_end.wait(60)

    handle = imports.enqueue()
    presence = app.store.presence

    def running() -> list[dict[str, object]]:
        records = [decode_record(content) for _, content, _ in presence.records()]
        return [msgspec.to_builtins(job) for record in records for job in record.running]

    async with working(app, worker_id="w1") as worker:
        await until(lambda: any(job.get("note") for job in running()))
        (job,) = running()
        assert {name: job[name] for name in ("job", "kind", "attempt", "done", "total", "note")} == {
            "job": handle.id, "kind": "imports", "attempt": 1, "done": 3, "total": 10, "note": "rows",
        }  # fmt: skip
        assert [type(job[name]) for name in ("done", "total")] == [int, int]
        (record,) = [decode_record(content) for _, content, _ in presence.records()]
        assert (record.worker, record.queues, record.concurrency) == ("w1", {"default": 1}, 10)
        assert record.counters["started"] == worker.metrics.started == 1
        may_end.set()
    assert presence.records() == []


# Policies -------------------------------------------------------------------------------------------------------


@rule("O4")
async def test_a_queue_policy_that_stops_fitting_is_logged_and_leases_are_still_extended(
    app: App, store: FaultyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("leasemill.worker.worker.POLICIES_S", 0.01)
    may_end = threading.Event()

    @app.job(timeout=60)
    def waits() -> None:
        may_end.wait(60)

    async with working(app, reaper_interval=5) as worker:
        await until(lambda: worker.metrics.reaper_runs)
        store.set_policy("default", Policy(lease_ttl_us=4 * SECOND), by="me", reason="test")
        await until(lambda: "does not fit this worker" in caplog.text)
        handle = waits.enqueue()
        await until(lambda: worker.metrics.extended >= 2)
        may_end.set()
        await handle.aresult(30)
    assert handle.record().attempt == 1
    assert caplog.text.count("a queue's policy does not fit this worker: reaper interval 5 s must be") == 1
    assert all(len(command.leases) == 1 for command in store.commands(c.Extend))
