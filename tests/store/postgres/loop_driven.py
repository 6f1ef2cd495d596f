"""A PostgreSQL store whose `run` goes through `arun`, so that a suite written for threads tests the event loop's path.

A worker claims, acks and enqueues by `arun`. Tests that call `run` alone would prove the path that production does
not take.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from leasemill.kernel import commands as c
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock

AnswerT = TypeVar("AnswerT")

_thread: Final = threading.local()
"""`is_off_loop` is set in a thread that works for the loop: a `run` there is one that `arun` itself has sent off."""


class LoopDrivenStore(PostgresStore):
    """Every command is sent by `loop`, which runs in a thread of its own."""

    loop: asyncio.AbstractEventLoop

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        if getattr(_thread, "is_off_loop", False):
            return super().run(command)
        return asyncio.run_coroutine_threadsafe(self.arun(command), self.loop).result()

    async def off_loop(self, call: Callable[..., AnswerT], *arguments: Any) -> AnswerT:
        return await super().off_loop(_off_loop, call, *arguments)


def loop_driven(url: str, clock: ManualClock, loop: asyncio.AbstractEventLoop) -> LoopDrivenStore:
    store = LoopDrivenStore(url, clock=clock)
    store.loop = loop
    return store


def _off_loop(call: Callable[..., AnswerT], *arguments: Any) -> AnswerT:
    _thread.is_off_loop = True
    try:
        return call(*arguments)
    finally:
        _thread.is_off_loop = False


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in another thread, until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="test-loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
