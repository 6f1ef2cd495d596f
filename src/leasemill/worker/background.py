"""The worker's threads beside its event loop, started and stopped together; none of them ends unnoticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol


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
        """In the thread that ends."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: the worker has ended
            self._loop.call_soon_threadsafe(self._over, error)

    def _over(self, error: BaseException | None) -> None:
        self._left -= 1
        if self._left == 0:
            self._all_ended.set()
        if error is not None:
            self._on_failure(error)
