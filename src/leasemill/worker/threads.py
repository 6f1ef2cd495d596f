"""Threads for sync handlers: made when needed, kept, and never in the way of the process's end.

The standard executor joins its threads when the interpreter exits; one handler that does not return would keep the
process alive for ever. These are daemons.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from leasemill.worker.handler import Report, call_sync
from leasemill.worker.run import Run

Job = tuple[Run, float]


class Threads:
    """Runs handlers in threads and hands their reports to the event loop, several at a time when they come fast."""

    def __init__(self, name: str, most: int, on_end: Callable[[Run, Report], None]) -> None:
        self._name = name
        self._most = most
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[Job | None] = SimpleQueue()
        self._ended: deque[tuple[Run, Report]] = deque()
        self._is_told = False
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def submit(self, run: Run, jitter: float) -> None:
        """Called on the event loop; never with more than `most` unfinished."""
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._run, name=f"{self._name}-handler-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put((run, jitter))

    def close(self) -> None:
        """Let idle threads go; those that run a handler end with it, or with the process."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        context = contextvars.Context
        while (job := self._work.get()) is not None:
            run, jitter = job
            report = context().run(call_sync, run, jitter)
            self._tell(run, report)
            del job, run, report

    def _tell(self, run: Run, report: Report) -> None:
        with self._lock:
            self._ended.append((run, report))
            if self._is_told:
                return
            self._is_told = True
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                return  # the loop was closed between the look and the call: the worker is gone

    def _collect(self) -> None:
        with self._lock:
            self._is_told = False
            ended, self._ended = self._ended, deque()
        self._busy -= len(ended)
        for run, report in ended:
            self._on_end(run, report)
