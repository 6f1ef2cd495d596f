"""Running handlers in their process: one at a time, in the main thread."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
import traceback
from contextlib import ExitStack
from typing import Any, Final, Protocol

from leasemill.api.app import App
from leasemill.kernel import commands as c
from leasemill.store.base import Store
from leasemill.worker.error_text import fitting
from leasemill.worker.handler import Report, call_async, call_sync
from leasemill.worker.processes import codec
from leasemill.worker.processes.interruption import HandlersChannel, Interruption
from leasemill.worker.processes.messages import BeginRun, ProgressMade, RunEnded
from leasemill.worker.run import Run
from leasemill.worker.threads import DaemonExecutor

PROGRESS_S: Final = 0.2
"""How often progress is sent, at most."""


class Receives(Protocol):
    """What is notified about the current run."""

    def taken(self, run: Run) -> None: ...
    def ended(self) -> None: ...


class HandlerRunner:
    """The app's handlers, called here; the event loop is made for the first that needs it, and kept."""

    def __init__(
        self,
        app: App,
        store: Store,
        channel: HandlersChannel,
        interruption: Interruption,
        cleaning: ExitStack,
        stopping: threading.Event,
    ) -> None:
        self.app = app
        self._store = store
        self._channel = channel
        self._interruption = interruption
        self._cleaning = cleaning
        self._runner: asyncio.Runner | None = None
        self._state: Any = None
        self._stopping = stopping
        self._progress = _ProgressSender(channel)

    def enter_lifespan(self) -> None:
        """The app's lifespan is this process's too. It is left by the task that entered it."""
        if self.app.hooks.lifespan is None:
            return
        runner = self._loop()
        loop = runner.get_loop()
        state, leave = loop.create_future(), asyncio.Event()
        task = loop.create_task(_in_lifespan(self.app, state, leave))

        async def entered() -> Any:
            await asyncio.wait([task, state], return_when=asyncio.FIRST_COMPLETED)
            return state.result() if state.done() else task.result()

        async def left() -> None:
            leave.set()
            await task

        self._state = runner.run(entered())
        self._cleaning.callback(lambda: runner.run(left()))

    def next(self, jobs: queue.SimpleQueue[BeginRun | None]) -> BeginRun | None:
        """The next job; tasks that a handler left behind, or the lifespan began, go on meanwhile."""
        if self._runner is None:
            return jobs.get()
        return self._runner.run(_got(jobs))

    def run(self, message: BeginRun, inbox: Receives) -> None:
        job = self.app.handlers.get(message.lease.job.kind)
        run = Run(message.lease, job, time.monotonic())
        inbox.taken(run)
        report = self._report(run, message.jitter)
        inbox.ended()
        raised = None if run.error is None else "".join(traceback.format_exception(run.error)).rstrip("\n")
        is_committed = run.context is not None and run.context.is_committed
        lost = None if run.has_ended_in_time else run.loss.reason
        has_raised = run.raised is not None
        self._channel.send(RunEnded(codec.pack(report), run.is_never_retried, is_committed, lost, raised, has_raised))

    def _report(self, run: Run, jitter: float) -> Report:
        kind = run.lease.job.kind
        why = run.mismatch() if run.job is not None else f"no handler for kind {kind!r}"
        if why is not None:
            text = f"Invalid: {why}; the code that its process imported is not the code of the worker: start it again"
            return c.NackReport(run.lease.job.id, run.lease.token, fitting(text), jitter)
        run.begin(self._store, self._state, time.monotonic(), self._stopping)
        if run.context is not None:
            self._progress.follow(run)
        self._interruption.begin()
        try:
            if run.handler.is_async:
                return self._loop().run(self._called(run, jitter), context=contextvars.Context())
            return contextvars.Context().run(call_sync, run, jitter)
        finally:
            self._interruption.end()

    async def _called(self, run: Run, jitter: float) -> Report:
        self._interruption.begin_task()
        return await call_async(run, jitter)

    def _loop(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = self._cleaning.enter_context(asyncio.Runner())
            self._runner.get_loop().set_default_executor(DaemonExecutor())
        return self._runner


async def _in_lifespan(app: App, entered: asyncio.Future[Any], leave: asyncio.Event) -> None:
    async with app.entered_lifespan() as state:
        entered.set_result(state)
        await leave.wait()


async def _got(jobs: queue.SimpleQueue[BeginRun | None]) -> BeginRun | None:
    return await asyncio.to_thread(jobs.get)


class _ProgressSender:
    """Sends the latest progress now and then, in a thread of its own: reporting it is cheap for handlers."""

    def __init__(self, channel: HandlersChannel) -> None:
        self._channel = channel
        self._changed = threading.Event()
        self._run: Run | None = None
        self._is_started = False

    def follow(self, run: Run) -> None:
        assert run.context is not None
        self._run = run
        run.context.on_progress = self._wake

    def _wake(self) -> None:
        self._changed.set()
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._send, name="leasemill-progress", daemon=True).start()

    def _send(self) -> None:
        while self._changed.wait():
            self._changed.clear()
            context = None if self._run is None else self._run.context
            progress = None if context is None else context.latest_progress
            if context is not None and progress is not None:
                message = ProgressMade(context.token, progress.done, progress.total, progress.note)
                try:
                    self._channel.send(message)
                except OSError:
                    return  # the worker is gone
            time.sleep(PROGRESS_S)
