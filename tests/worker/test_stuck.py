"""Handlers that do not return: what they cost, and how it shows."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from leasemill import App, Context, JobState, Retry, Worker
from leasemill.errors import WorkerStuck
from leasemill.kernel.model import AbortReason
from leasemill.store.worker_records import WorkerRecord, decode_record
from tests.worker.support import until, working

SOON = Retry(max=3, base=0.001, cap=0.001)


@pytest.fixture
def may_end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.worker.presence.PRESENCE_S", 0.01)
    monkeypatch.setattr("leasemill.worker.pacing.STUCK_AFTER_S", 0.05)


def record_of(app: App) -> WorkerRecord | None:
    found = [decode_record(content) for _, content, _ in app.store.presence.records()]
    return found[0] if found else None


async def test_a_retry_waits_in_the_same_worker_until_the_run_before_it_has_returned(
    app: App, may_end: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[str] = []

    @app.job(timeout=0.3, retry=SOON)
    def slow(ctx: Context) -> None:
        runs.append(f"begin {ctx.attempt}")
        if ctx.attempt == 1:
            may_end.wait(60)
        runs.append(f"end {ctx.attempt}")

    handle = slow.enqueue()
    async with working(app) as worker:
        await until(lambda: "its attempt 1 is still running in this worker" in caplog.text, limit_s=30)
        assert runs == ["begin 1"]
        assert worker.metrics.stuck == 1
        await until(lambda: worker.metrics.released)
        job = handle.record()
        assert [it.reason for it in job.executions][:2] == [AbortReason.FAILED, AbortReason.RELEASED]
        assert job.retries == 1, "it cost no retry"
        may_end.set()
        await until(lambda: handle.status() is JobState.SUCCEEDED, limit_s=60)
        assert worker.metrics.stuck == 0
    assert runs[:2] == ["begin 1", "end 1"]


@pytest.mark.usefixtures("impatient")
async def test_a_slot_whose_handler_does_not_return_is_shown_logged_and_counted(
    app: App, may_end: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(timeout=0.05, retry=0)
    def hangs() -> None:
        may_end.wait(60)

    @app.job
    async def other() -> None: ...

    handle = hangs.enqueue()
    async with working(app, concurrency=2) as worker:
        await until(lambda: worker.metrics.stuck_runs, limit_s=30)
        assert "its slot is stuck (1 of 2 slots)" in caplog.text
        await until(lambda: (record := record_of(app)) is not None and record.stuck, limit_s=30)
        record = record_of(app)
        assert record is not None
        assert [(it.job, it.kind, it.attempt) for it in record.stuck] == [(handle.id, "hangs", 1)]
        assert (record.running, record.is_stuck, record.counters["stuck"]) == ([], False, 1)
        await other.enqueue().aresult(30)
        may_end.set()
        await until(lambda: worker.metrics.stuck == 0, limit_s=30)
        assert "handler has returned: its slot is free again" in caplog.text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_worker_without_a_usable_slot_gives_its_jobs_back_and_ends(
    app: App, may_end: threading.Event, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasemill.worker.watchdog.CANCEL_GRACE_S", 0.05)

    @app.job(name="hangs_in_a_thread", timeout=0.05, retry=0)
    def hangs_in_a_thread() -> None:
        may_end.wait(60)

    @app.job(name="is_deaf", timeout=0.05, retry=0)
    async def is_deaf() -> None:
        deadline = time.monotonic() + 60
        while not may_end.is_set() and time.monotonic() < deadline:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    @app.job
    async def other() -> None: ...

    hung = [(is_deaf if is_async else hangs_in_a_thread).enqueue() for _ in range(2)]
    worker = Worker(app, concurrency=2, handle_signals=False)
    task = asyncio.create_task(worker.run())
    await until(lambda: worker.metrics.timed_out == 2, limit_s=30)
    behind = other.enqueue()
    with pytest.raises(WorkerStuck, match="every slot of worker"):
        await asyncio.wait_for(task, 60)
    assert [handle.status() for handle in hung] == [JobState.FAILED, JobState.FAILED]
    assert behind.status() is JobState.READY
    assert app.store.presence.records() == []
    may_end.set()  # before the event loop is closed, which waits for its tasks


@pytest.mark.usefixtures("impatient")
async def test_a_worker_that_drains_does_not_wait_for_a_handler_that_is_stuck(
    app: App, may_end: threading.Event
) -> None:
    @app.job(timeout=0.05, retry=0)
    def hangs() -> None:
        may_end.wait(60)

    handle = hangs.enqueue()
    await asyncio.wait_for(Worker(app, concurrency=2, drain=True, handle_signals=False).run(), 50)
    assert handle.status() is JobState.FAILED
