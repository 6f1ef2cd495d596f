"""What the worker's tests share: a store with faults, a worker that runs beside the test, waiting for conditions."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

from leasemill import App, Worker
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.store.memory import MemoryStore
from leasemill.store.system import Clock
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import Observers
from leasemill.worker.settings import Settings
from leasemill.worker.timing import Times

AnswerT = TypeVar("AnswerT")
Fault = Literal["before", "after"]


class FaultyStore(MemoryStore):
    """Loses calls (before anything happened) or replies (after everything did), as a test asks."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.is_away = False
        self.sent: list[c.Command[Any]] = []
        self.refuses: Exception | None = None
        self._faults: defaultdict[type, deque[Fault]] = defaultdict(deque)

    def fail(self, command: type[c.Command[Any]], *faults: Fault) -> None:
        self._faults[command].extend(faults)

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        self.sent.append(command)
        if self.refuses is not None:
            raise self.refuses
        faults = self._faults[type(command)]
        fault = faults.popleft() if faults else None
        if self.is_away or fault == "before":
            raise Unavailable("the store is away")
        answer = super().run(command)
        if fault == "after":
            raise Unavailable("the reply was lost")
        return answer

    def commands(self, kind: type[c.Command[Any]]) -> list[Any]:
        return [command for command in self.sent if isinstance(command, kind)]


def settings_of(app: App) -> Settings:
    """The settings of a worker of this app, for a part of one that is tested alone."""
    queues = dict.fromkeys(app.queues, 1)
    return Settings(
        worker_id="worker",
        instance="instance",
        app=app,
        queues=queues,
        kinds={},
        times=Times({}, queues or ["default"], heartbeat_s=None, reaper_s=None, shutdown_s=None),
        concurrency=1,
        drains=False,
        drain_wait_us=0,
        mismatch_s=3600.0,
        metrics=Metrics(),
        observers=Observers(),
    )


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    """A worker that runs inside the block and stops at its end."""
    worker = Worker(app, handle_signals=False, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
        worker.stop()
        await asyncio.wait_for(task, 30)
    finally:
        if not task.done():
            worker.stop(now=True)
            await asyncio.wait([task], timeout=10)


async def drained(app: App, **options: Any) -> Worker:
    """A worker that has run until nothing was left to do."""
    worker = Worker(app, drain=True, handle_signals=False, **options)
    await asyncio.wait_for(worker.run(), 60)
    return worker


async def until(condition: Callable[[], object], what: str = "the condition", limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {limit_s} s waiting for {what}"
        await asyncio.sleep(0.002)
