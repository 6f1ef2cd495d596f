"""An event loop in a thread of its own, in which all of a store's waits are.

Whoever waits, a thread or another event loop, has a future: so any number may wait, and a store that is closed ends
every wait at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

AnswerT = TypeVar("AnswerT")


class LoopThread:
    """The thread and its loop, started when they are first used; a forked child starts its own."""

    def __init__(self, name: str, on_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._on_end = on_end
        self.is_closed = False
        self.after_fork()

    def after_fork(self) -> None:
        """Begin again in a forked child: the parent's thread is not here, and its lock may be held."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, call: Coroutine[Any, Any, AnswerT]) -> Future[AnswerT]:
        """Run a coroutine in the loop. Its future is cancelled when the thread is closed."""
        with self._lock:
            if self.is_closed:
                call.close()
                cancelled: Future[AnswerT] = Future()
                cancelled.cancel()
                return cancelled
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop, self._on_end), name=self._name, daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(call, self._loop)

    def close(self) -> None:
        """Cancel what runs, and wait for its end."""
        with self._lock:
            was_closed, self.is_closed = self.is_closed, True
            loop, thread = self._loop, self._thread
        if was_closed or loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()


def _run(loop: asyncio.AbstractEventLoop, on_end: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(asyncio.sleep(0))  # what was submitted has begun
        while tasks := asyncio.all_tasks(loop):  # one that ends may have begun others
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(on_end())
    finally:
        loop.close()
