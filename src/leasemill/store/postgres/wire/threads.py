"""Threads for calls that an event loop must not wait for.

They are daemons: a call that never returns, because the network swallows what is sent, keeps no process from ending.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

AnswerT = TypeVar("AnswerT")
Task = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]
Tasks = queue.SimpleQueue[Task | None]


class Threads:
    """At most `size` threads, started when they are needed. A forked child starts its own."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._is_closed = False
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._tasks: Tasks = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def submit(self, call: Callable[..., AnswerT], *arguments: Any) -> Future[AnswerT]:
        if os.getpid() != self._pid:
            self._start_over()  # the parent's threads are not here
        future: Future[AnswerT] = Future()
        with self._lock:
            if self._is_closed:
                future.cancel()
                return future
            self._tasks.put((future, call, arguments))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._size:
                name = f"{self._name} {len(self._threads)}"
                thread = threading.Thread(target=_run, args=(self._tasks, self._idle), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def close(self) -> None:
        """Cancel what has not begun; threads end with the call they are in."""
        if os.getpid() != self._pid:
            self._start_over()
        with self._lock:
            self._is_closed = True
        try:
            while (task := self._tasks.get_nowait()) is not None:
                task[0].cancel()
        except queue.Empty:
            pass
        self._tasks.put(None)

    def join(self, until_s: float) -> None:
        """Wait for them, until then on the monotonic clock."""
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))


def _run(tasks: Tasks, idle: threading.Semaphore) -> None:
    while True:
        try:
            task = tasks.get_nowait()
        except queue.Empty:
            idle.release()
            task = tasks.get()
        if task is None:
            tasks.put(None)  # for the others
            return
        _carry_out(*task)
        del task  # what it holds is not kept until the next one


def _carry_out(future: Future[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        answer = call(*arguments)
    except BaseException as error:  # noqa: BLE001  (whatever it is, it is the caller's)
        future.set_exception(error)
    else:
        future.set_result(answer)
