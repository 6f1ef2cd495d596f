"""Async handlers that never wait share a task: none of them may notice."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar
from typing import Any

from leasemill import App, JobEvent, JobState
from leasemill.kernel import commands as c
from leasemill.worker.async_calls import OWN_TASKS, AsyncCalls
from leasemill.worker.handler import Ended, Report
from leasemill.worker.run import Phase, Run, Stop
from tests.worker.support import drained, until, working


class Calls:
    """Runs of an app's jobs, called, with how they ended."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.ends: dict[str, Report] = {}
        self.calls = AsyncCalls(self._ended)

    def _ended(self, ends: list[Ended]) -> None:
        for run, report in ends:
            run.phase = Phase.ENDED
            run.task = None
            self.ends[run.lease.job.id] = report

    def runs(self) -> list[Run]:
        leases = self.app.store.claim("worker", ["default"], 1_000)
        runs = [Run(lease, self.app.jobs[lease.job.kind], 0.0) for lease in leases]
        for run in runs:
            assert run.mismatch() is None
            run.begin(self.app.store, None, time.monotonic(), threading.Event())
        return runs

    def start(self, *runs: Run) -> None:
        for run in runs:
            self.calls.start(run, 0.5)

    async def ended(self, count: int) -> None:
        await until(lambda: len(self.ends) == count)

    def kinds(self) -> set[type]:
        return {type(report) for report in self.ends.values()}


async def test_handlers_that_do_not_wait_share_a_task_but_not_a_context(app: App) -> None:
    variable: ContextVar[int | None] = ContextVar("variable", default=None)
    seen: list[tuple[int | None, asyncio.Task[Any] | None]] = []

    @app.job
    async def quick(number: int) -> None:
        seen.append((variable.get(), asyncio.current_task()))
        variable.set(number)

    quick.enqueue_many(quick.call(number) for number in range(5))
    calls = Calls(app)
    calls.start(*calls.runs())
    await calls.ended(5)
    assert calls.kinds() == {c.AckReport}
    assert [value for value, _ in seen] == [None] * 5
    assert len({task for _, task in seen}) == 1
    assert seen[0][1] is not None


async def test_a_handler_that_waits_goes_on_where_it_began_while_others_are_called(app: App) -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)
    gate = asyncio.Event()
    tasks: dict[int, list[asyncio.Task[Any] | None]] = {}

    @app.job
    async def waits(number: int) -> int:
        variable.set(number)
        tasks[number] = [asyncio.current_task()]
        async with asyncio.timeout(60):
            await gate.wait()
        await asyncio.sleep(0)
        tasks[number].append(asyncio.current_task())
        return variable.get()

    @app.job
    async def quick() -> None:
        gate.set()

    waits.enqueue_many(waits.call(number) for number in range(1, 4))
    quick.enqueue()
    calls = Calls(app)
    runs = calls.runs()
    calls.start(*runs)
    await calls.ended(4)
    results = [calls.ends[run.lease.job.id] for run in runs[:3]]
    assert [it.result for it in results if isinstance(it, c.AckReport)] == [b"1", b"2", b"3"]
    assert all(began is not None and began is ended for began, ended in tasks.values())
    assert len({began for began, _ in tasks.values()}) == 3


async def test_a_kind_that_waited_has_tasks_of_its_own_for_a_while(app: App) -> None:
    tasks: list[asyncio.Task[Any] | None] = []

    @app.job
    async def sometimes(waits: bool) -> None:
        tasks.append(asyncio.current_task())
        if waits:
            await asyncio.sleep(0)

    sometimes.enqueue(True)
    sometimes.enqueue_many(sometimes.call(False) for _ in range(OWN_TASKS + 3))
    calls = Calls(app)
    first, *others = calls.runs()
    calls.start(first)
    await calls.ended(1)
    calls.start(*others)
    await calls.ended(OWN_TASKS + 4)
    assert len(set(tasks[: OWN_TASKS + 1])) == OWN_TASKS + 1
    assert len(set(tasks[OWN_TASKS + 1 :])) == 1


async def test_an_error_of_one_is_its_own(app: App) -> None:
    @app.job
    async def fails(waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("broken")

    @app.job
    async def quick() -> None:
        pass

    fails.enqueue(False)
    quick.enqueue()
    fails.enqueue(True)
    quick.enqueue()
    calls = Calls(app)
    runs = calls.runs()
    calls.start(*runs)
    await calls.ended(4)
    assert [type(calls.ends[run.lease.job.id]) for run in runs] == [c.NackReport, c.AckReport] * 2


async def test_a_handler_that_cancels_its_own_task_stops_nobody_else(app: App) -> None:
    @app.job
    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    @app.job
    async def waits() -> None:
        await asyncio.sleep(0.001)

    cancels.enqueue()
    waits.enqueue()
    calls = Calls(app)
    calls.start(*calls.runs())
    await calls.ended(2)
    assert calls.kinds() == {c.AckReport}


async def test_a_run_that_is_stopped_in_line_is_not_called(app: App) -> None:
    called: list[int] = []

    @app.job
    async def quick(number: int) -> None:
        called.append(number)

    quick.enqueue_many(quick.call(number) for number in range(3))
    calls = Calls(app)
    runs = calls.runs()
    calls.start(*runs)
    assert all(run.is_in_line and run.task is not None for run in runs)
    runs[1].stop = Stop.SHUTDOWN
    await calls.ended(3)
    assert called == [0, 2]
    assert isinstance(calls.ends[runs[1].lease.job.id], c.ReleaseReport)


async def test_the_loop_has_its_turn_between_many_quick_handlers(app: App) -> None:
    @app.job
    async def quick() -> None:
        pass

    quick.enqueue_many(quick.call() for _ in range(3_000))
    turns: list[int] = []
    async with working(app) as worker:
        while worker.metrics.succeeded < 3_000:
            turns.append(worker.metrics.succeeded)
            await asyncio.sleep(0)
    assert len(set(turns)) > 2


async def test_a_timeout_stops_the_handler_that_waits_and_no_other(app: App) -> None:
    @app.job(timeout=1, retry=0)
    async def slow() -> None:
        await asyncio.sleep(3_600)

    @app.job
    async def quick() -> str:
        return "ok"

    late = slow.enqueue()
    handles = [quick.enqueue() for _ in range(20)]
    async with working(app) as worker:
        await until(lambda: worker.metrics.failed == 1, limit_s=60)
        more = quick.enqueue()
        await until(lambda: worker.metrics.succeeded == 21)
    assert late.status() is JobState.FAILED
    assert {handle.result(0) for handle in [*handles, more]} == {"ok"}


async def test_the_loops_task_factory_makes_none_of_the_tasks_that_run_jobs(app: App) -> None:
    """An eager one (Python 3.12) would run a task's first step before the worker knows the task."""
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, called: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(called.__qualname__)
        return asyncio.Task(called, loop=loop, **options)

    @app.job
    async def waits() -> None:
        await asyncio.sleep(0)

    @app.on_start
    async def started(event: JobEvent) -> None: ...

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        waits.enqueue_many(waits.call() for _ in range(3))
        await drained(app)
    finally:
        loop.set_task_factory(None)
    assert app.store.totals().counts[JobState.SUCCEEDED] == 3
    assert "Runner.prepare" in made
    calls = {"StoreLoop._send_batches", "StoreLoop._claim_jobs"}
    assert not {"AsyncCalls._call_all", "AsyncCalls._call", "Runner._begin_hooked", *calls}.intersection(made)
