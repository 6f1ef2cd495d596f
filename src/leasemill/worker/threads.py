"""The worker's threads: for sync handlers, for what handlers call with `asyncio.to_thread`, and its own."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar

from leasemill.errors import LeasemillError, Unavailable
from leasemill.store.threads import Threads
from leasemill.worker.handler import Ended, call_sync
from leasemill.worker.run import Run

P = ParamSpec("P")
T = TypeVar("T")

TO_THREAD_SIZE: Final = min(32, (os.cpu_count() or 1) + 4)
"""As many threads as the standard executor would have."""


class HandlerThreads:
    """Runs sync handlers and hands their reports to the event loop, several at a time when they come fast."""

    def __init__(self, name: str, size: int, on_ends: Callable[[Sequence[Ended]], None]) -> None:
        self._threads = Threads(size, f"{name}-handler")
        self._on_ends = on_ends
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._ended: list[Ended] = []
        self._is_collecting = False

    def start(self, run: Run, jitter: float) -> None:
        self._threads.start(self._call, run, jitter)

    def close(self) -> None:
        """Let idle threads go; those that run a handler end with it, or with the process."""
        self._threads.close()

    def _call(self, run: Run, jitter: float) -> None:
        report = contextvars.Context().run(call_sync, run, jitter)
        with self._lock:
            self._ended.append((run, report))
            if self._is_collecting:
                return
            self._is_collecting = True
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                return  # the loop was closed between the look and the call: the worker is gone

    def _collect(self) -> None:
        with self._lock:
            self._is_collecting = False
            ended, self._ended = self._ended, []
        self._on_ends(ended)


class DaemonExecutor(ThreadPoolExecutor):
    """A ThreadPoolExecutor, as the event loop demands, whose threads nobody waits for."""

    def __init__(self, size: int = TO_THREAD_SIZE) -> None:
        super().__init__(size)
        self._daemons = Threads(size, "leasemill-to-thread")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._daemons.submit(partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let idle threads go. It waits for none, whatever is asked: the process must not."""
        self._daemons.close()


async def off_loop(function: Callable[[], None]) -> None:
    """Call this in a thread. What the store cannot answer now is ignored: records of workers are soft state, and are
    read and written again while the worker runs."""
    with suppress(Unavailable, OSError):
        await asyncio.get_running_loop().run_in_executor(DaemonExecutor(1), function)


def start_background(name: str, run: Callable[[], None], on_end: Callable[[BaseException | None], None]) -> None:
    """Run this in a thread that cannot end unnoticed; `on_end` is called with what ended it, or None.

    A heartbeat that died in silence would cost every lease.
    """

    def main() -> None:
        error: BaseException | None = None
        try:
            run()
        except LeasemillError as raised:  # Broken, mostly: the worker must stop, and logs why itself
            error = raised
        finally:
            on_end(error or sys.exc_info()[1])

    threading.Thread(target=main, name=f"leasemill-{name}", daemon=True).start()


class BackgroundPart(Protocol):
    """Runs in a thread from `start` on. It calls the `on_end` it was made with when that has ended."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Background:
    """`on_failure` is called on the event loop with what ended a part."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parts: Sequence[BackgroundPart] = ()
        self._left = 0
        self._all_ended = asyncio.Event()

    def start(self, parts: Sequence[BackgroundPart]) -> None:
        self._loop = asyncio.get_running_loop()
        self._parts = parts
        for part in parts:
            part.start()
            self._left += 1

    def stop(self) -> None:
        for part in self._parts:
            part.stop()

    async def wait(self, until: float) -> None:
        """Until all have ended, or until this monotonic time."""
        if self._left:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), max(0.0, until - time.monotonic()))

    def ended(self, error: BaseException | None) -> None:
        """Called in the thread that ends."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: the worker has ended
            self._loop.call_soon_threadsafe(self._over, error)

    def _over(self, error: BaseException | None) -> None:
        self._left -= 1
        if self._left == 0:
            self._all_ended.set()
        if error is not None:
            self._on_failure(error)
