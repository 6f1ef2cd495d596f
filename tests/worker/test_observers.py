"""What a worker reports to the app's observers, and that none of them can do harm."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leasemill import App, Context, JobState, Observer, Release, Retry, Settled
from leasemill.api.observer import End
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.testing.clock import ManualClock
from leasemill.worker.heartbeat import Heartbeat
from leasemill.worker.housekeeping import Chore, Housekeeping
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import Observers
from leasemill.worker.reaper import Reaper
from leasemill.worker.run import Phase, Run
from tests.worker.support import FaultyStore, drained, until, working

METHODS = sorted(name for name, value in vars(Observer).items() if callable(value))


class Recorder(Observer):
    """Keeps every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        for name in METHODS:
            setattr(self, name, self._recording(name))

    def _recording(self, name: str) -> Callable[..., None]:
        return lambda *args: self.calls.append((name, args))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args in self.calls if called == name]

    @property
    def ends(self) -> list[tuple[str, End, str | None]]:
        settled: list[Settled] = [one for batch, _ in self.of("settled") for one in batch]
        return [(one.lease.job.kind, one.end, one.error and re.split("[\n;]", one.error)[0]) for one in settled]


@pytest.fixture
def recorder(app: App) -> Recorder:
    found = Recorder()
    app.observers.append(found)
    return found


async def test_a_run_is_reported_from_its_claim_to_its_end(app: App, recorder: Recorder, clock: ManualClock) -> None:
    @app.job
    async def waits() -> None: ...

    handle = waits.options(delay=2).enqueue()
    clock.advance(s=5)
    await drained(app)
    (leases, took_s), *others = recorder.of("claimed")
    assert [lease.job.id for lease in leases] == [handle.id]
    assert took_s >= 0
    assert all(leases == [] for leases, _ in others)
    ((lease, waited_s),) = recorder.of("run_started")
    assert lease is leases[0]
    assert 3 <= waited_s < 10
    ((ended, ran_s),) = recorder.of("run_ended")
    assert ended is lease
    assert ran_s >= 0
    ((batch, settled_s),) = recorder.of("settled")
    assert batch == [Settled(lease, "succeeded")]
    assert settled_s >= 0
    names = [name for name, _ in recorder.calls if name not in ("claimed", "reaper_ran", "store_called")]
    assert names == ["worker_began", "run_started", "run_ended", "settled", "worker_ended"]
    ((worker_id, slots, counters),) = recorder.of("worker_began")
    assert (slots, counters()["succeeded"]) == (10, 1)
    assert recorder.of("worker_ended") == [(worker_id,)]
    called = recorder.of("store_called")
    assert {verb for verb, _ in called} == {"claim", "ack", "expire"}
    assert all(took_s >= 0 for _, took_s in called)


async def test_how_long_a_job_that_has_run_before_was_due_is_not_known(app: App, recorder: Recorder) -> None:
    @app.job(retry=Retry(max=1, base=0.001, cap=0.001))
    async def second_time(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")

    handle = second_time.enqueue()
    async with working(app):
        await handle.aresult(30)
    assert [waited is None for _, waited in recorder.of("run_started")] == [False, True]
    assert recorder.ends == [
        ("second_time", "retried", "ValueError: not yet"),
        ("second_time", "succeeded", None),
    ]


async def test_every_end_has_its_name(
    app: App, recorder: Recorder, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heartbeat, "hurry", lambda self: None)  # it must not notice the cancellation first

    @app.job(retry=0)
    async def fails() -> None:
        raise ValueError("for good")

    @app.job(retry=0)
    async def fails_after_its_commit(ctx: Context) -> None:
        async with ctx.commit():
            pass
        raise ValueError("too late")

    @app.job
    async def gives_back() -> None:
        raise Release(60)

    @app.job
    async def is_cancelled(ctx: Context) -> None:
        app.store.cancel([ctx.job_id], by="a test", reason="shows a refusal")

    for job in (fails, fails_after_its_commit, gives_back, is_cancelled):
        job.enqueue()
    app.store.enqueue([JobSpec("unknown", "default", "unknown")])
    await drained(app)
    assert sorted(recorder.ends) == [
        ("fails", "failed", "ValueError: for good"),
        ("fails_after_its_commit", "succeeded", "ValueError: too late"),
        ("gives_back", "released", None),
        ("is_cancelled", "refused", "cancelled"),
        (
            "unknown",
            "released",
            "Mismatch: no handler for kind 'unknown'",
        ),
    ]
    assert "unknown" not in [lease.job.kind for lease, _ in recorder.of("run_started")]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_timeout_is_reported_before_what_becomes_of_it(app: App, recorder: Recorder, is_async: bool) -> None:
    @app.job(name="job", timeout=0.05, retry=0)
    async def run_async(ctx: Context) -> None:
        await asyncio.sleep(60)

    @app.job(name="sync", timeout=0.05, retry=0)
    def run_sync(ctx: Context) -> None:
        ctx.lost.wait(60)

    handle = (run_async if is_async else run_sync).enqueue()
    async with working(app):
        await until(lambda: handle.status() is JobState.FAILED and recorder.of("run_ended"))
    names = [name for name, _ in recorder.calls if name in ("timed_out", "settled", "lost")]
    assert names == ["timed_out", "settled"]
    assert [lease.job.id for (lease,) in recorder.of("timed_out")] == [handle.id]
    assert [end for _, end, _ in recorder.ends] == ["failed"]


async def test_a_lost_lease_is_reported_once_with_its_reason(app: App, recorder: Recorder) -> None:
    began = asyncio.Event()

    @app.job
    async def is_cancelled() -> None:
        began.set()
        await asyncio.sleep(60)

    handle = is_cancelled.enqueue()
    async with working(app):
        await began.wait()
        handle.cancel(reason="shows a loss")
        await until(lambda: recorder.of("run_ended"))
    assert [(lease.job.id, reason) for lease, reason in recorder.of("lost")] == [(handle.id, "cancelled")]
    assert recorder.ends == []


async def test_a_store_that_fails_is_reported_with_the_command(app: App, store: FaultyStore) -> None:
    app.observers.append(recorder := Recorder())

    @app.job
    async def noop() -> None: ...

    noop.enqueue()
    store.fail(c.GetPolicies, "before")
    store.fail(c.Claim, "before")
    store.fail(c.Ack, "after")
    await drained(app)
    assert recorder.of("store_failed") == [("queue policies",), ("claim",), ("ack",)]


def test_the_heartbeat_reports_what_it_extended(clock: ManualClock, store: FaultyStore) -> None:
    recorder, app = Recorder(), App(store=store)

    @app.job
    def noop() -> None: ...

    store.enqueue([JobSpec(f"job {number}", "default", "noop") for number in range(3)])
    runs = [Run(lease, noop, 0.0) for lease in store.claim("w", ["default"], 3)]
    for run in runs:
        run.phase, run.timeout_at = Phase.RUNNING, 1e9
    store.cancel(["job 1"], by="a test", reason="shows what is not extended")
    heartbeat = Heartbeat(
        "w",
        store,
        Metrics(),
        running=lambda: runs,
        on_lost=lambda run, reason: None,
        on_answered=lambda: None,
        on_end=lambda error: None,
        monotonic=lambda: 12.0,
        observers=Observers([recorder]),
    )
    clock.advance(s=12)
    store.fail(c.Extend, "before")
    heartbeat.beat()
    heartbeat._not_before = 0.0
    heartbeat.beat()
    assert recorder.calls == [
        ("store_failed", ("extend",)),
        ("store_called", ("extend", 0.0)),
        ("extended", (2, 1, 0.0)),
    ]


def test_the_reaper_reports_what_it_recovered_and_each_of_its_runs(clock: ManualClock, store: FaultyStore) -> None:
    recorder = Recorder()
    reaper = Reaper("me", store, Metrics(), Observers([recorder]))
    store.enqueue([JobSpec("job", "default", "noop")])
    store.claim("another", ["default"], 1)
    clock.advance(s=3600)
    reaper.run()
    reaper.run()
    reaper.close()
    run = ["store_called", "reaper_ran"]
    assert [name for name, _ in recorder.calls] == ["expired", *run, *run]
    assert {verb for verb, _ in recorder.of("store_called")} == {"expire"}
    ((expirations,),) = recorder.of("expired")
    assert [(one.job_id, one.worker) for one in expirations] == [("job", "another")]
    assert recorder.of("reaper_ran") == [(1,), (0,)]


def test_a_task_of_the_housekeeping_that_the_store_failed_is_reported(store: FaultyStore) -> None:
    recorder = Recorder()
    store.is_away = True
    chore = Chore("reaper", lambda: 1.0, Reaper("me", store, Metrics()).run)
    housekeeping = Housekeeping(
        "me", [chore], Metrics(), jitter=lambda: 1.0, on_end=lambda _: None, observers=Observers([recorder])
    )
    housekeeping.round()
    assert recorder.calls == [("store_failed", ("reaper",))]


class Broken(Observer):
    """Every method fails."""

    def __init__(self) -> None:
        self.calls = 0
        for name in METHODS:
            setattr(self, name, self._fail)

    def _fail(self, *args: object) -> None:
        self.calls += 1
        raise RuntimeError("this observer is broken")


async def test_an_error_in_an_observer_changes_nothing_and_is_logged_once_for_each_method(
    app: App, caplog: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    app.observers += [broken := Broken(), recorder := Recorder()]

    @app.job
    async def noop() -> None: ...

    handles = noop.enqueue_many(noop.call() for _ in range(20))
    await drained(app)
    assert {handle.status() for handle in handles} == {JobState.SUCCEEDED}
    assert len(recorder.ends) == 20
    assert broken.calls > 20
    lines = [record for record in caplog.records if "observer" in record.message]
    assert all(line.levelno == logging.ERROR and line.exc_info is not None for line in lines)
    named = [line.message.split()[1] for line in lines]
    assert sorted(set(named)) == sorted(named)
    assert {"Broken.claimed", "Broken.run_started", "Broken.run_ended", "Broken.settled"} <= set(named)


def test_an_observer_may_override_what_it_wants_and_no_more() -> None:
    class Counts(Observer):
        def __init__(self) -> None:
            self.count = 0

        def claimed(self, leases: Sequence[c.Lease], took_s: float) -> None:
            self.count += 1

    counts = Counts()
    observers = Observers([counts])
    observers.notify(Observer.claimed, [], 0.1)
    observers.notify(Observer.store_failed, "claim")
    assert counts.count == 1
    assert observers.are_there
    assert not Observers().are_there
