"""The default executor of a worker's event loop: what `asyncio.to_thread` runs in.

The standard one joins its threads when the interpreter exits, so one call that does not return would keep a stopped
worker's process alive. These threads are daemons.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MOST_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""As many as the standard executor would have."""


class DaemonExecutor(ThreadPoolExecutor):
    """A ThreadPoolExecutor, as the event loop demands, whose threads nobody waits for."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        super().__init__(max_workers=most)
        self._most = most
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._unfinished = 0
        self._daemons = 0
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 (the caller's function: the future has its error)
                    future.set_exception(error)

        with self._guard:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._unfinished += 1
            if self._unfinished > self._daemons and self._daemons < self._most:
                self._daemons += 1
                threading.Thread(target=self._run, name=f"leasemill-to-thread-{self._daemons}", daemon=True).start()
        self._calls.put(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let idle threads go. It waits for none, whatever is asked: the process must not."""
        with self._guard:
            self._is_shut = True
            for _ in range(self._daemons):
                self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call
            with self._guard:
                self._unfinished -= 1
