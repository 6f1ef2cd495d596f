"""A PostgreSQL store whose `run` goes through `arun`, so that a suite written for threads tests the event loop's path.

A worker claims, acks and enqueues by `arun`. Tests that call `run` alone would prove the path that production does
not take.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from leasemill.kernel import commands as c
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock

AnswerT = TypeVar("AnswerT")


class LoopDrivenStore(PostgresStore):
    """Every command is sent by `loop`, which runs in a thread of its own."""

    loop: asyncio.AbstractEventLoop

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        return asyncio.run_coroutine_threadsafe(self.arun(command), self.loop).result()


def loop_driven(url: str, clock: ManualClock, loop: asyncio.AbstractEventLoop) -> LoopDrivenStore:
    store = LoopDrivenStore(url, clock=clock)
    store.loop = loop
    return store


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
