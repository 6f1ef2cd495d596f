"""A counter that threads and event loops can wait on: how a store notifies its own process of a change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


class Signal:
    """Wakes everybody who waits, in whatever thread or event loop they do."""

    def __init__(self) -> None:
        self._count = 0
        self.reset()

    def reset(self) -> None:
        """Forget everybody who waits: for a forked child, which has none of them."""
        self._changed = threading.Condition()
        self._callbacks: set[Callable[[], None]] = set()

    def notify(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, set()
        for callback in callbacks:
            callback()

    def watch(self) -> SignalWatch:
        return SignalWatch(self)


class SignalWatch:
    """A place in the signal's count; waiting returns at once if it has moved on since."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self._seen = signal._count

    def wait(self, timeout_s: float) -> bool:
        signal = self._signal
        with signal._changed:
            changed = signal._changed.wait_for(lambda: signal._count != self._seen, timeout_s)
            self._seen = signal._count
        return changed

    async def wait_async(self, timeout_s: float) -> bool:
        signal = self._signal
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits there
                loop.call_soon_threadsafe(woken.set)

        with signal._changed:
            if signal._count != self._seen:
                self._seen = signal._count
                return True
            signal._callbacks.add(wake)
        try:
            async with asyncio.timeout(timeout_s):  # wait_for may swallow a cancellation
                await woken.wait()
        except TimeoutError:
            return False
        finally:
            with signal._changed:
                signal._callbacks.discard(wake)
                self._seen = signal._count
        return True

    def close(self) -> None:
        """Nothing is held between waits."""
