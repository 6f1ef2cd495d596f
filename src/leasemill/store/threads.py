"""Threads for calls that an event loop must not wait for, and what has to start over in a forked child.

The calls are sync handlers, `asyncio.to_thread`, a database. Their threads are daemons: the standard executor joins its
threads when the interpreter exits, so one call that never returns (the network swallows what is sent, a handler loops)
would keep the process alive for ever.

In a forked child its parent's threads are not there, their locks may be held for ever, and its connections and
descriptors are not the child's to use. So `after_fork` is called in the fork itself, before the child can start a
thread.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar

AnswerT = TypeVar("AnswerT")
Task = tuple["Future[Any] | None", Callable[..., Any], tuple[Any, ...]]


class Threads:
    """At most `size` threads, started when they are needed. A forked child starts its own."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._is_closed = False
        self.after_fork()
        start_over_in_children(self)

    def after_fork(self) -> None:
        self._work = _Work()
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, self._work.tasks.put, None).atexit = False

    def submit(self, call: Callable[..., AnswerT], *arguments: Any) -> Future[AnswerT]:
        """Run a call in one of the threads. Its future is cancelled if they are closed."""
        future: Future[AnswerT] = Future()
        if not self._put((future, call, arguments)):
            future.cancel()
        return future

    def start(self, call: Callable[..., None], *arguments: Any) -> None:
        """Run a call whose end no caller waits for, and that raises nothing."""
        self._put((None, call, arguments))

    def _put(self, task: Task) -> bool:
        work, threads = self._work, self._threads
        with work.lock:
            if self._is_closed:
                return False
            work.tasks.put(task)
            if work.is_full:
                return True
            work.unfinished += 1
            if work.unfinished > len(threads):
                name = f"{self._name}-{len(threads)}"
                thread = threading.Thread(target=work.carry_out, name=name, daemon=True)
                thread.start()
                threads.append(thread)  # now it can be joined
                work.is_full = len(threads) == self._size
        return True

    def close(self) -> None:
        """Cancel what has not begun; threads end with the call they are in."""
        with self._work.lock:
            self._is_closed = True
        try:
            while (task := self._work.tasks.get_nowait()) is not None:
                if task[0] is not None:
                    task[0].cancel()
        except queue.Empty:
            pass
        self._work.tasks.put(None)

    def join(self, until_s: float) -> None:
        """Wait for the threads to end, until this time on the monotonic clock."""
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))


class _Work:
    """What the threads know. Not the `Threads` themselves: when those are forgotten, the threads end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.unfinished = 0
        self.is_full = False
        """All threads are started: from then on nothing has to be counted."""

    def carry_out(self) -> None:
        while (task := self.tasks.get()) is not None:
            future, call, arguments = task
            if future is None:
                call(*arguments)
            elif future.set_running_or_notify_cancel():
                try:
                    answer = call(*arguments)
                except BaseException as error:  # noqa: BLE001  (whatever it is, it is the caller's)
                    future.set_exception(error)
                else:
                    future.set_result(answer)
                    del answer
            del task, future, call, arguments  # what they hold is not kept until the next one
            if not self.is_full:
                with self.lock:
                    self.unfinished -= 1
        self.tasks.put(None)  # for the others


class StartsOver(Protocol):
    """An object that starts over in a forked child."""

    def after_fork(self) -> None:
        """Start over. Called in the child, where no other thread runs yet; it must not wait for anything."""


_IN_USE: Final[weakref.WeakSet[StartsOver]] = weakref.WeakSet()


def start_over_in_children(one: StartsOver) -> None:
    """Call the object's `after_fork` in every forked child, for as long as the object exists."""
    _IN_USE.add(one)


def _start_over() -> None:
    for one in list(_IN_USE):
        one.after_fork()


os.register_at_fork(after_in_child=_start_over)
