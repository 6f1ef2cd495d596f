"""A worker's lifespan: the app's is entered before the first claim and left after the last report.

It has a task of its own, which enters and leaves it: what a task group opened must be closed by the same task. What
must never happen: a claim before it has started, or a worker that works on when what it set up has ended by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from leasemill.api.app import App
from leasemill.api.hooks import lifespan_name
from leasemill.errors import LifespanFailed
from leasemill.worker.shutdown import Shutdown

log = logging.getLogger("leasemill.worker")


class WorkerLifespan:
    """Enters the app's lifespan, and leaves it."""

    def __init__(self, app: App, worker_id: str, on_failure: Callable[[BaseException], None]) -> None:
        self._app = app
        self._worker_id = worker_id
        self._on_failure = on_failure
        """It ended by itself."""
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[Any] | None = None
        self._must_end = asyncio.Event()
        self._is_entered = False
        self.state: Any = None
        """What it yields: the state of handlers and hooks."""

    def adopt(self, state: Any) -> None:
        """Use the state of a lifespan that the caller has entered, and will leave."""
        self.state, self._is_entered = state, True

    async def enter(self) -> None:
        """Enter it, and set `state`."""
        if self._app.hooks.lifespan is None or self._is_entered:
            return
        self._started = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(self._started), name=f"leasemill lifespan {self._worker_id}")
        await asyncio.wait([self._started, self._task], return_when=asyncio.FIRST_COMPLETED)
        if self._started.done():
            self._task.add_done_callback(self._ended)
            self.state = self._started.result()
            return
        raise self._failed("failed to start, so nothing was claimed", self._task)

    async def _live(self, started: asyncio.Future[Any]) -> None:
        async with self._app.entered_lifespan() as state:
            started.set_result(state)
            await self._must_end.wait()

    async def leave(self, shutdown: Shutdown) -> LifespanFailed | None:
        """End it, within the time that is left; one that has not started yet is cancelled. Returns what it raised."""
        task = self._task
        if task is None or task.done():
            return None
        self._must_end.set()
        if self._started is None or not self._started.done():
            task.cancel()
        await asyncio.wait([task], timeout=max(0.0, shutdown.plan().closing_until - time.monotonic()))
        if not task.done():
            task.cancel()
            log.error("the lifespan %s did not end in time", self._name, extra={"worker": self._worker_id})
        elif not task.cancelled() and task.exception() is not None:
            return self._failed("failed to stop, after the last report", task)
        return None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self._must_end.is_set():
            self._on_failure(self._failed("ended while the worker ran", task))

    @property
    def _name(self) -> str:
        return lifespan_name(self._app.hooks.lifespan)

    def _failed(self, how: str, task: asyncio.Task[None]) -> LifespanFailed:
        """The error for the caller; the log has its traceback."""
        error = None if task.cancelled() else task.exception()
        why = "it was cancelled" if error is None else f"{type(error).__name__}: {error}"
        log.error("the lifespan %s %s", self._name, how, exc_info=error, extra={"worker": self._worker_id})
        failed = LifespanFailed(f"the lifespan {self._name} {how}: {why}")
        failed.__cause__ = error
        return failed
