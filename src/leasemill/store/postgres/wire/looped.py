"""A message whose answers an event loop waits for, with callbacks of its own: no thread, and no task to be cancelled.

All of it happens on the loop's thread. The connection is the caller's again when `done` is called.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeAlias

import psycopg
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from leasemill.store.postgres.wire.batch import Message
from leasemill.store.postgres.wire.connections import Row, StoreConnection

Answer: TypeAlias = "list[list[Row]] | psycopg.Error"
"""The rows of each statement, or the error."""


class Sending:
    """`done` is called once, with what came of it, unless it is given up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, message: Message, done: Callable[[Answer], None]) -> None:
        self._loop = loop
        self._message = message
        self._done = done
        self._connection: StoreConnection = message.connection  # type: ignore[assignment]
        self._descriptor = self._connection.fileno()
        self._writes = False
        self._timer: asyncio.Handle | None = None

    def begin(self) -> None:
        loop = self._loop
        loop.add_reader(self._descriptor, self._step, Ready.R)
        if math.isfinite(self._connection.silent_for_s):
            self._timer = loop.call_later(self._connection.silent_for_s, self.give_up)
        self._step(None)

    def _step(self, ready: Ready | None) -> None:
        steps = self._message.answers
        try:
            wanted = next(steps) if ready is None else steps.send(ready)
        except StopIteration as end:
            self._end(end.value)
        except psycopg.Error as error:
            self._fail(error)
        else:
            if (wanted == Wait.RW) != self._writes:
                self._writes = not self._writes
                if self._writes:
                    self._loop.add_writer(self._descriptor, self._step, Ready.W)
                else:
                    self._loop.remove_writer(self._descriptor)

    def give_up(self) -> None:
        """The server did not answer in time, or nobody waits for it any more."""
        self._fail(psycopg.OperationalError("the server did not answer, the connection was closed"))

    def finish(self, timeout_s: float) -> None:
        """Wait for the answer here, not on the loop, which stands still meanwhile."""
        self._connection.silent_for_s = timeout_s
        try:
            results = self._connection.wait(self._message.answers)
        except psycopg.Error as error:
            self._fail(error)
        else:
            self._end(results)

    def _end(self, results: list[PGresult]) -> None:
        self._stop()
        try:
            rows = self._message.rows(results)
        except psycopg.Error as error:
            self._done(error)
        else:
            self._done(rows)

    def _fail(self, error: psycopg.Error) -> None:
        self._stop()
        self._connection.pgconn.finish()
        self._done(error)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
            if self._writes:
                self._loop.remove_writer(self._descriptor)
