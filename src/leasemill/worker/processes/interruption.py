"""Stopping a handler in its process: SIGTERM raises SystemExit in a sync handler and cancels an async one.

Only what the worker announced stops it: a service manager may send SIGTERM to every process of a service, and then the
worker decides what its handlers do.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType

from leasemill.worker.processes.channel import MessageChannel
from leasemill.worker.processes.messages import ToChild, ToWorker


class Interruption:
    """Whether the handler that runs is to stop, and how. Signals arrive in the main thread, where handlers run."""

    def __init__(self) -> None:
        self.is_sending = False
        """The main thread is writing to the channel: half a message would be the last one that can be read."""
        self._reason: str | None = None
        self._is_running = False
        self._is_pending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._interrupted)
        signal.signal(signal.SIGINT, _ignored)

    def begin(self) -> None:
        """A handler is about to run, unless it was stopped before."""
        self._is_running = True
        if self._reason is not None:
            raise SystemExit

    def begin_task(self) -> None:
        """The current task is the handler's."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    def end(self) -> None:
        """The handler has ended: what comes now is too late."""
        self._is_running = False
        self._task = None

    def stop(self, reason: str) -> None:
        """Stop the handler. Called from the thread that reads the channel."""
        self._reason = reason
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def raise_pending(self) -> None:
        if self._is_pending:
            self._is_pending = False
            self._raise()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._reason is None or not self._is_running:
            return
        if self.is_sending:
            self._is_pending = True
        else:
            self._raise()

    def _raise(self) -> None:
        if self._task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        elif self._is_running:
            raise SystemExit(f"stopped by the worker: {self._reason}")


def _ignored(number: int, frame: FrameType | None) -> None:
    """SIGINT is the worker's. Not SIG_IGN, which programs that a handler starts would inherit."""


class HandlersChannel(MessageChannel):
    """The channel of a handler's process: no handler is stopped in the middle of a message."""

    interruption: Interruption

    def send(self, message: ToChild | ToWorker) -> None:
        if threading.current_thread() is not threading.main_thread():
            super().send(message)
            return
        was_sending, self.interruption.is_sending = self.interruption.is_sending, True
        try:
            super().send(message)
        finally:
            self.interruption.is_sending = was_sending
        if not was_sending:
            self.interruption.raise_pending()
