"""Messages whose answers an event loop waits for, with callbacks of its own: no thread, and no task to be cancelled.

All that concerns a message happens on its loop's thread, but for what is given up with a loop that was closed. A
message takes a connection that is idle, and gives it back before its answer is reported.
"""

from __future__ import annotations

import asyncio
import math
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import psycopg
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from leasemill.store.postgres.wire.batch import Message, Sent
from leasemill.store.postgres.wire.connections import Connections, Row, StoreConnection
from leasemill.store.postgres.wire.errors import is_lost


class MessageFailed(Exception):
    """Of a message. `is_lost`: it may have been carried out."""

    def __init__(self, error: psycopg.Error, *, is_lost: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_lost = is_lost


Answer: TypeAlias = list[list[Row]] | MessageFailed
"""The rows of each statement, or why there are none."""


class LoopMessages:
    """Of one store."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._under_way: set[_Sending] = set()

    def after_fork(self) -> None:
        self._inherited = self._under_way  # the parent's, not ours to use or to close
        self._under_way = set()

    def send(self, statements: Sequence[Sent], done: Callable[[Answer], None]) -> bool:
        """On the running loop; `done` is called there, once. False: no connection is idle."""
        for left in [one for one in tuple(self._under_way) if one.loop.is_closed()]:  # others add theirs meanwhile
            left.give_up()
        connection = self._connections.take_idle()
        if connection is None:
            return False
        under_way: list[_Sending] = []

        def end(answer: Answer) -> None:
            self._under_way.difference_update(under_way)
            self._connections.give_back(connection)
            done(answer)

        try:
            message = Message(connection, *statements)
        except psycopg.Error as error:
            end(MessageFailed(error, is_lost=True))
            return True
        except BaseException:
            self._connections.give_back(connection)  # it is closed, and no place in the pool is lost
            raise
        sending = _Sending(asyncio.get_running_loop(), connection, message, end)
        under_way.append(sending)
        self._under_way.add(sending)
        sending.begin()
        return True

    async def ask(self, statements: Sequence[Sent]) -> Answer | None:
        """None: no connection is idle. A caller that is cancelled leaves it under way."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(answer: Answer) -> None:
            if not answered.done():
                with suppress(RuntimeError):  # its loop was closed: nobody waits there
                    answered.set_result(answer)

        return await answered if self.send(statements, done) else None

    def finish(self, timeout_s: float) -> None:
        """Wait for those of this thread's loop, which stands still meanwhile, so long."""
        with suppress(RuntimeError):  # there is no loop here
            loop = asyncio.get_running_loop()
            for sending in list(self._under_way):
                if sending.loop is loop:
                    sending.finish(timeout_s)

    def give_up(self) -> None:
        """Those of other threads' loops."""
        for sending in list(self._under_way):
            with suppress(RuntimeError):  # it was closed meanwhile
                sending.loop.call_soon_threadsafe(sending.give_up)


class _Sending:
    """One message. `end` is called once, with the result."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: StoreConnection,
        message: Message,
        end: Callable[[Answer], None],
    ) -> None:
        self.loop = loop
        self._connection = connection
        self._message = message
        self._tell = end
        self._descriptor = connection.fileno()
        self._writes = False
        self._is_over = False
        self._timer: asyncio.Handle | None = None

    def begin(self) -> None:
        self.loop.add_reader(self._descriptor, self._step, Ready.R)
        if math.isfinite(self._connection.silent_for_s):
            self._timer = self.loop.call_later(self._connection.silent_for_s, self.give_up)
        self._step(None)

    def _step(self, ready: Ready | None) -> None:
        steps = self._message.answers
        try:
            wanted = next(steps) if ready is None else steps.send(ready)
            while ready is not None and wanted == Wait.R and self._has_more():
                wanted = steps.send(Ready.R)
        except StopIteration as end:
            self._end(end.value)
        except psycopg.Error as error:
            self._fail(error)
        else:
            if (wanted == Wait.RW) != self._writes:
                self._writes = not self._writes
                if self._writes:
                    self.loop.add_writer(self._descriptor, self._step, Ready.W)
                else:
                    self.loop.remove_writer(self._descriptor)

    def _has_more(self) -> bool:
        """A large answer comes in many parts; handlers may run for milliseconds between two turns of the loop."""
        arrived = select.poll()
        arrived.register(self._descriptor, select.POLLIN)
        return bool(arrived.poll(0))

    def give_up(self) -> None:
        """The server did not answer in time, or nobody waits for it any more."""
        if not self._is_over:
            self._fail(psycopg.OperationalError("the server did not respond, the connection was closed"))

    def finish(self, timeout_s: float) -> None:
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
            self._tell(MessageFailed(error, is_lost=is_lost(error, self._connection)))
        else:
            self._tell(rows)

    def _fail(self, error: psycopg.Error) -> None:
        self._stop()
        self._connection.pgconn.finish()
        self._tell(MessageFailed(error, is_lost=True))

    def _stop(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.loop.is_closed():
            self.loop.remove_reader(self._descriptor)
            if self._writes:
                self.loop.remove_writer(self._descriptor)
