"""The worker's processes for handlers: started when they are needed, at most one for each slot, kept for the next job.

On the event loop; the slots call back from their threads. Why not `concurrent.futures`: docs/decisions/0044.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final

from leasemill.api.app import App
from leasemill.api.policy import Executor, check_executor
from leasemill.errors import Refused
from leasemill.store.base import Store
from leasemill.worker.handler import Report
from leasemill.worker.processes.launch import Spawned, begin_message, target_of
from leasemill.worker.processes.slot import ProcessSlot
from leasemill.worker.run import Run

log = logging.getLogger("leasemill.worker")

FAILED_STARTS: Final = 5
"""So many processes in a row that cannot start end the worker."""


class HandlerProcesses:
    """Runs handlers in processes and hands their reports to the event loop."""

    def __init__(
        self,
        worker_id: str,
        app: App,
        store: Store,
        *,
        kinds: Collection[str],
        stopping: threading.Event,
        on_begun: Callable[[Run], None],
        on_end: Callable[[Run, Report | None], None],
        on_not_begun: Callable[[Run], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._worker_id = worker_id
        self._app = app
        self._store = store
        self.kinds = kinds
        """The kinds of jobs whose handlers run in processes."""
        self._stopping = stopping
        self._on_begun = on_begun
        self._on_end = on_end
        self._on_not_begun = on_not_begun
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._slots: list[ProcessSlot] = []
        self._idle: list[ProcessSlot] = []
        self._open = 0
        self._all_closed = asyncio.Event()
        self._failed_starts = 0
        self._first: asyncio.Future[None] | None = None

    async def prepare(self) -> None:
        """Start the first process: an app that cannot be imported there ends the worker before it claims a job."""
        if not self.kinds:
            return
        self._target = target_of(self._app)
        self._first = self._loop.create_future()
        self._idle.append(self._new())
        try:
            await self._first
        except Refused:
            self.close()
            raise

    def start(self, run: Run, jitter: float) -> None:
        """There is a slot: the worker has no more of them than this has."""
        slot = self._idle.pop() if self._idle else self._new()
        if not slot.is_ready:
            run.wait_for_process()
        run.process = slot
        slot.begin(run, jitter)

    def announce_stop(self) -> None:
        """The worker has begun to stop: handlers may want to know. From any thread."""
        for slot in list(self._slots):
            slot.announce_stop()

    def close(self) -> None:
        """Let the processes end; those with a job when that has ended."""
        for slot in self._slots:
            slot.close()

    async def closed(self, until: float) -> None:
        """Wait until they have ended, until then on the monotonic clock."""
        if self._open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), max(0.0, until - time.monotonic()))

    def _new(self) -> ProcessSlot:
        slot = ProcessSlot(
            f"{self._worker_id}-process-{len(self._slots)}",
            self._launch,
            self._store,
            self._stopping,
            on_ready=partial(self._on_loop, self._ready),
            on_begun=partial(self._on_loop, self._on_begun),
            on_ended=partial(self._on_loop, self._ended),
            on_failed=partial(self._on_loop, self._failed),
            on_closed=partial(self._on_loop, self._closed),
        )
        self._slots.append(slot)
        self._open += 1
        return slot

    def _launch(self) -> Spawned:
        """Called in the slot's thread."""
        return Spawned(begin_message(self._app, self._target), self._worker_id)

    def _on_loop(self, function: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the worker has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _ready(self, kinds: list[str]) -> None:
        self._failed_starts = 0
        if self._first is None or self._first.done():
            return
        missing = sorted(set(self.kinds).difference(kinds))
        if missing:
            self._first.set_exception(
                Refused(
                    f"a process for handlers does not know {', '.join(missing)}: name the modules that declare them "
                    "where the app is made, App(include=['shop.jobs'])"
                )
            )
        else:
            self._first.set_result(None)

    def _ended(self, run: Run, report: Report | None) -> None:
        self._free(run)
        self._on_end(run, report)

    def _failed(self, run: Run | None, error: Refused) -> None:
        """A process did not start. The run that waited for it is given back."""
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
            return
        log.error("%s", error, extra={"worker": self._worker_id})
        self._failed_starts += 1
        if run is not None:
            self._free(run)
            self._on_not_begun(run)
        if self._failed_starts >= FAILED_STARTS:
            self._on_failure(error)

    def _free(self, run: Run) -> None:
        slot = run.process
        run.process = None
        assert isinstance(slot, ProcessSlot)
        if slot.is_ready:
            self._idle.append(slot)
        else:
            self._idle.insert(0, slot)

    def _closed(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._all_closed.set()


def process_kinds(app: App, executor: Executor) -> frozenset[str]:
    """The kinds whose handlers a worker with this executor runs in processes: a job's own choice comes first."""
    check_executor(executor)
    return frozenset(kind for kind, job in app.handlers.items() if (job.executor or executor) == "process")
