"""The end of a worker: what it finishes, what it gives back, how long it takes."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import IO

import pytest

from leasemill import App, Context, JobState, JobType, Release, Worker
from leasemill.errors import Broken
from leasemill.kernel import commands as c
from leasemill.kernel.model import AbortReason, WorkerOrder
from leasemill.store.worker_records import records
from leasemill.testing.rules import rule
from tests.worker.support import FaultyStore, until


async def started(app: App, **options: object) -> tuple[Worker, asyncio.Task[None]]:
    worker = Worker(app, handle_signals=False, **options)  # type: ignore[arg-type]
    return worker, asyncio.create_task(worker.run())


async def test_running_jobs_may_end_and_nothing_more_is_claimed(app: App) -> None:
    gate = asyncio.Event()

    @app.job
    async def waits(number: int) -> int:
        await gate.wait()
        return number

    first, second = waits.enqueue(1), waits.enqueue(2)
    worker, task = await started(app, concurrency=1)
    await until(lambda: worker.metrics.running)
    worker.stop()
    await asyncio.sleep(0.01)
    assert not task.done()
    gate.set()
    await asyncio.wait_for(task, 30)
    assert first.result(0) == 1
    assert (second.status(), second.record().attempt) == (JobState.READY, 0)


async def test_what_does_not_end_in_time_is_stopped_and_given_back_without_a_penalty(app: App) -> None:
    saw: list[str] = []

    @app.job
    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            saw.append("cancelled")
            raise

    @app.job
    def endless_thread(ctx: Context) -> None:
        ctx.lost.wait(60)
        saw.append(f"lost: {ctx.lost.reason}")

    handles = [endless.enqueue(), endless_thread.enqueue()]
    worker, task = await started(app, shutdown_timeout=3)
    await until(lambda: worker.metrics.running == 2)
    worker.stop()
    await asyncio.wait_for(task, 30)
    assert sorted(saw) == ["cancelled", "lost: the worker is shutting down"]
    for job in (handle.record() for handle in handles):
        assert (job.state, job.retries, job.executions[0].reason) == (JobState.READY, 0, AbortReason.RELEASED)


@rule("C7")
async def test_the_job_of_a_handler_that_does_not_end_is_not_released_and_its_death_can_be_proved(
    app: App, store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = threading.Event()

    @app.job
    def deaf() -> None:
        may_end.wait(60)

    handle = deaf.enqueue()
    worker, task = await started(app, shutdown_timeout=0)
    await until(lambda: worker.metrics.running)
    worker.stop()
    await asyncio.wait_for(task, 30)
    assert (handle.status(), store.commands(c.Release)) == (JobState.LEASED, [])
    assert "handler has not ended: its job is not released" in caplog.text
    assert "a worker of this machine sees that this process has ended, or when its lease has expired" in caplog.text
    assert [record.worker for record, _ in records(store.presence)] == [worker.id], "by which others see it die"
    may_end.set()


async def test_a_second_request_does_not_wait_for_handlers(app: App) -> None:
    @app.job
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if done:
                    raise

    @app.job
    async def listens() -> None:
        await asyncio.sleep(60)

    done: list[bool] = []
    handle, listener = stubborn.enqueue(), listens.enqueue()
    worker, task = await started(app)
    await until(lambda: worker.metrics.running == 2)
    worker.stop()
    worker.stop()
    try:
        await asyncio.wait_for(task, 15)  # the shutdown timeout is 20 s
        assert [listener.status(), handle.status()] == [JobState.READY, JobState.LEASED]
    finally:
        done.append(True)


async def test_handlers_see_at_once_that_the_worker_stops_and_may_end_early_or_give_the_job_back(app: App) -> None:
    saw: list[bool] = []

    @app.job
    def ends_early(ctx: Context) -> str:
        assert ctx.stopping.wait(60)
        saw.append(ctx.lost.is_set())
        return "as far as it got"

    @app.job
    async def goes_on_elsewhere(ctx: Context) -> None:
        while not ctx.stopping.is_set():  # noqa: ASYNC110  (as handlers do)
            await asyncio.sleep(0.001)
        raise Release

    early, elsewhere = ends_early.enqueue(), goes_on_elsewhere.enqueue()
    worker, task = await started(app)
    await until(lambda: worker.metrics.running == 2)
    assert not worker.shutdown.stopping.is_set()
    worker.stop()
    await asyncio.wait_for(task, 15)  # the shutdown timeout is 20 s
    assert (early.status(), early.result(0), saw) == (JobState.SUCCEEDED, "as far as it got", [False])
    job = elsewhere.record()
    assert (job.state, job.retries, job.executions[0].reason) == (JobState.READY, 0, AbortReason.RELEASED)


async def test_a_worker_that_is_stopped_waits_neither_for_a_deaf_handler_nor_for_a_store_that_hangs(
    app: App, store: FaultyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = asyncio.Event()

    @app.job
    async def deaf() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    @app.job
    async def listens() -> None:
        await may_end.wait()

    async def hangs(command: c.Command[object]) -> object:
        return await asyncio.get_running_loop().create_future()

    deaf.enqueue()
    listens.enqueue()
    worker, task = await started(app, shutdown_timeout=0.5)
    await until(lambda: worker.metrics.running == 2)
    monkeypatch.setattr(store, "arun", hangs)
    worker.stop()
    await asyncio.wait_for(task, 30)
    assert "1 report could not be sent: its lease will expire" in caplog.text
    may_end.set()


async def test_a_worker_that_waits_for_a_store_that_hangs_when_it_starts_can_be_stopped(
    app: App, store: FaultyStore, monkeypatch: pytest.MonkeyPatch, noop: JobType[[], None]
) -> None:
    asked = asyncio.Event()

    async def hangs(command: c.Command[object]) -> object:
        asked.set()
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(store, "arun", hangs)
    worker, task = await started(app)
    await asyncio.wait_for(asked.wait(), 30)
    worker.stop()
    await asyncio.wait_for(task, 15)


def test_a_call_in_a_thread_of_the_loop_does_not_keep_run_sync() -> None:
    app = App("memory:")
    may_end, called = threading.Event(), threading.Event()

    def hangs() -> None:
        called.set()
        may_end.wait(120)

    @app.job
    async def calls_a_thread() -> None:
        await asyncio.to_thread(hangs)

    handle = calls_a_thread.enqueue()
    worker = Worker(app, handle_signals=False, shutdown_timeout=2)
    running = threading.Thread(target=worker.run_sync, daemon=True)
    running.start()
    assert called.wait(30)
    worker.stop()
    running.join(30)
    try:
        assert not running.is_alive()
        assert [it for it in threading.enumerate() if it.name.startswith("leasemill-to-thread") and not it.daemon] == []
        assert handle.status() is JobState.READY
    finally:
        may_end.set()


async def test_jobs_claimed_while_stopping_are_given_back_unrun(
    app: App, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    @app.job
    async def noop() -> None:
        ran.append(1)

    handle = noop.enqueue()
    arun = store.arun

    async def slow_claim(command: c.Command[object]) -> object:
        answer = await arun(command)
        if isinstance(command, c.Claim):
            worker.stop()
            await asyncio.sleep(0.01)
        return answer

    monkeypatch.setattr(store, "arun", slow_claim)
    worker, task = await started(app)
    await asyncio.wait_for(task, 30)
    assert ran == []
    job = handle.record()
    assert (job.state, job.executions[0].reason) == (JobState.READY, AbortReason.RELEASED)


async def test_a_worker_stopped_before_it_runs_claims_nothing(
    app: App, store: FaultyStore, noop: JobType[[], None]
) -> None:
    noop.enqueue()
    worker = Worker(app, handle_signals=False)
    worker.stop()
    await worker.run()
    assert store.commands(c.Claim) == []


async def test_a_worker_stopped_before_it_runs_does_not_wait_for_a_store_that_is_away(
    app: App, store: FaultyStore, noop: JobType[[], None]
) -> None:
    store.is_away = True
    worker = Worker(app, handle_signals=False)
    worker.stop()
    await asyncio.wait_for(worker.run(), 15)


async def test_a_worker_stopped_when_its_parts_are_there_claims_nothing(
    app: App, store: FaultyStore, noop: JobType[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    noop.enqueue()
    worker = Worker(app, handle_signals=False)
    publish = store.presence.publish

    def stopped_meanwhile(worker_id: str, record: bytes) -> WorkerOrder | None:
        worker.stop()
        return publish(worker_id, record)

    monkeypatch.setattr(store.presence, "publish", stopped_meanwhile)
    await asyncio.wait_for(worker.run(), 30)
    assert store.commands(c.Claim) == []
    assert store.presence.records() == []


async def test_a_worker_whose_task_is_cancelled_stops_its_handlers_and_gives_their_jobs_back(app: App) -> None:
    saw: list[str] = []

    @app.job
    async def waits() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            saw.append("cancelled")
            raise

    @app.job
    def listens(ctx: Context) -> None:
        saw.append("began")
        if ctx.lost.wait(600):
            saw.append("lost")
            raise RuntimeError

    handles = [waits.enqueue(), listens.enqueue()]
    worker, task = await started(app)
    await until(lambda: worker.metrics.running == 2 and saw == ["began"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    await until(lambda: len(saw) == 3)  # a thread ends in its own time
    assert sorted(saw) == ["began", "cancelled", "lost"]
    assert [(handle.status(), handle.record().retries) for handle in handles] == [(JobState.READY, 0)] * 2


async def test_a_signal_stops_all_workers_of_a_loop_and_then_means_what_it_did_before(app: App) -> None:
    def by_the_program(number: int, frame: object) -> None: ...

    @app.job
    async def noop() -> None: ...

    before = signal.signal(signal.SIGTERM, by_the_program)
    try:
        workers = [Worker(app, ["default"]), Worker(App(store=FaultyStore()), ["default"])]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        await until(lambda: all(worker.metrics.claims for worker in workers))
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert signal.getsignal(signal.SIGTERM) is by_the_program
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_worker_that_ends_leaves_the_signals_to_others_of_its_loop(app: App, noop: JobType[[], None]) -> None:
    worker, other = Worker(app), Worker(App(store=FaultyStore()), ["default"], drain=True)
    task = asyncio.create_task(worker.run())
    await until(lambda: worker.metrics.claims)
    await other.run()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 30)


async def test_a_worker_leaves_no_thread_behind(app: App) -> None:
    @app.job
    def noop() -> None: ...

    noop.enqueue_many(noop.call() for _ in range(50))
    before = set(threading.enumerate())
    worker = Worker(app, drain=True, handle_signals=False)
    await worker.run()
    await until(lambda: set(threading.enumerate()) <= before, "threads to end")


PROGRAM = """
import asyncio, logging, sys, time
from leasemill import App, Worker

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")

app = App("memory:")

@app.job
async def waits(mode: str) -> None:
    print("running", flush=True)
    if mode == "quick":
        await asyncio.sleep(0.2)
        print("ended", flush=True)
    while mode == "stubborn":
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@app.job
def blocks() -> None:
    print("running", flush=True)
    time.sleep(60)

(blocks if sys.argv[1] == "thread" else waits).enqueue(*sys.argv[1:] if sys.argv[1] != "thread" else [])
Worker(app).run_sync()
print("exited", flush=True)
"""


@pytest.mark.parametrize(
    ("mode", "signals", "output"),
    [
        ("quick", [signal.SIGTERM], ["ended", "exited"]),
        ("quick", [signal.SIGINT], ["ended", "exited"]),
        ("stubborn", [signal.SIGTERM, signal.SIGTERM], ["exited"]),
        ("thread", [signal.SIGTERM, signal.SIGINT], ["exited"]),
    ],
)
def test_signals_end_the_process_in_order_and_with_success(
    mode: str, signals: list[signal.Signals], output: list[str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, mode],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        await_line(process.stdout, "running")
        first, *second = signals
        process.send_signal(first)
        if second:
            await_line(process.stdout, "stopping")  # two signals of one kind that wait together would be one
            process.send_signal(second[0])
        rest, _ = process.communicate(timeout=60)
    assert [line for line in rest.splitlines() if line in ("ended", "exited")] == output
    assert process.returncode == 0


def await_line(stream: IO[str], beginning: str) -> None:
    assert any(line.startswith(beginning) for line in stream), f"it ended without a line that begins with {beginning}"


async def test_a_worker_that_waits_for_its_jobs_extends_their_leases_and_claims_no_more(app: App) -> None:
    may_end = asyncio.Event()

    @app.job(lease=0.4, timeout=600)
    async def long() -> str:
        await may_end.wait()
        return "done"

    first, second = long.enqueue(), long.enqueue()
    worker, task = await started(app, concurrency=1, shutdown_timeout=math.inf)
    await until(lambda: worker.metrics.running)
    worker.stop()
    extended = worker.metrics.extended
    await until(lambda: worker.metrics.extended >= extended + 5, "several leases")
    assert not task.done()
    may_end.set()
    await asyncio.wait_for(task, 30)
    assert (first.result(0), first.record().attempt) == ("done", 1)
    assert second.record().attempt == 0


async def test_a_second_request_gives_back_what_a_worker_would_wait_for_without_end(app: App) -> None:
    @app.job(timeout=600)
    async def long() -> None:
        await asyncio.sleep(600)

    handle = long.enqueue()
    worker, task = await started(app, shutdown_timeout=math.inf)
    await until(lambda: worker.metrics.running)
    worker.stop()
    await asyncio.sleep(0.01)
    assert not task.done()
    worker.stop()
    await asyncio.wait_for(task, 30)
    job = handle.record()
    assert (job.state, job.retries, job.executions[0].reason) == (JobState.READY, 0, AbortReason.RELEASED)


async def test_a_broken_store_ends_a_worker_that_waits_without_end(app: App, store: FaultyStore) -> None:
    @app.job(timeout=600, lease=1)
    async def long() -> None:
        await asyncio.sleep(600)

    long.enqueue()
    worker, task = await started(app, shutdown_timeout=math.inf)
    await until(lambda: worker.metrics.running)
    worker.stop()
    store.refuses = Broken("the disk is gone")
    with pytest.raises(Broken):
        await asyncio.wait_for(task, 30)


@pytest.mark.parametrize("kind_lease", [30, 60])
async def test_a_shutdown_takes_no_longer_than_the_shortest_lease_in_hand(app: App, kind_lease: float) -> None:
    """RULE-020-031, for a job whose own lease is shorter than its kind's."""
    may_end = threading.Event()

    @app.job(lease=kind_lease)
    def deaf() -> None:
        may_end.wait(60)

    deaf.options(lease=2, timeout=60).enqueue()
    worker, task = await started(app)
    await until(lambda: worker.metrics.running)
    before = time.monotonic()
    worker.stop()
    try:
        assert worker.shutdown.plan().gone_by <= before + 2 + 0.5
        await asyncio.wait_for(task, 30)
    finally:
        may_end.set()
