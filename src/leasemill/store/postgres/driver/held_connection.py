"""A connection that an event loop has: it sends one message after another, and reads the answers with a callback.

The loop keeps its connection for some turns: if whoever got the answer, or what that started, sends the next message,
as a worker does, the connection and its place in the selector are still there. It keeps none that others wait for, nor
the last one: what runs meanwhile may block the loop, and the worker's threads must not wait for that.

Its methods are called on the loop's thread. Two are called elsewhere: `give_up` when the loop was closed, and `leave`
when the loop stands still and others want the place in the pool.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

import psycopg

from leasemill.store.postgres.driver.connections import SILENT, Connections
from leasemill.store.postgres.driver.exchange import MessageExchange, Sent, StoreConnection
from leasemill.store.postgres.steps import Row

KEPT_TURNS: Final = 4
"""So many turns of the loop: a worker that got jobs accepts them, calls their handlers, and then reports."""


class FailedMessage(NamedTuple):
    """A message that failed: with what, and what that means to a caller if the steps do not handle it."""

    error: psycopg.Error
    meaning: Exception


Answer: TypeAlias = list[list[Row]] | FailedMessage
OnAnswer: TypeAlias = Callable[[Answer], None]


class HeldConnection:
    """A connection that a loop has, for one message after another."""

    def __init__(
        self,
        connections: Connections,
        all_held: set[HeldConnection],
        loop: asyncio.AbstractEventLoop,
        connection: StoreConnection,
    ) -> None:
        self.loop = loop
        self.connection = connection
        self._connections = connections
        self._all_held = all_held
        self._descriptor = os.dup(connection.fileno())
        """Our own: libpq closes its descriptor without notice, and if a forked child has that too, the selector would
        report it for ever."""
        self._exchange: MessageExchange | None = None
        self._on_answer: OnAnswer | None = None
        self._answer_due_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._turns_left = 0
        self._is_counting = False
        self._writes = False
        self._was_left = False
        try:
            loop.add_reader(self._descriptor, self._readable)
        except BaseException:
            os.close(self._descriptor)
            raise
        all_held.add(self)

    @property
    def is_busy(self) -> bool:
        return self._exchange is not None

    @property
    def is_left_behind(self) -> bool:
        """Its loop was stopped, and has not looked when the answer was due."""
        return self.is_busy and not self.loop.is_running() and self.loop.time() > self._answer_due_s

    def begin(self, statements: Sequence[Sent], on_answer: OnAnswer) -> None:
        try:
            self._exchange = MessageExchange(self.connection, statements)
        except psycopg.Error as error:
            self._on_answer = on_answer
            self._fail(error)
            return
        except BaseException:
            self.let_go()  # the connection is closed, and no place in the pool is lost
            raise
        self._on_answer = on_answer
        self._answer_due_s = self.loop.time() + self.connection.silent_for_s
        if self._timer is None and math.isfinite(self._answer_due_s):
            self._timer = self.loop.call_at(self._answer_due_s, self._look_at_time)
        self._writable()

    def _readable(self) -> None:
        if self._exchange is None:
            self.let_go()  # the server has closed it, or sends what nobody asked for
            return
        try:
            is_complete = self._exchange.read()
            while not is_complete and self._has_more():
                is_complete = self._exchange.read()
        except psycopg.Error as error:
            self._fail(error)
        else:
            if is_complete:
                self._end(keeps=not self._connections.are_wanted)
            elif self._writes:
                self._writable()  # it may have waited for us to read

    def _writable(self) -> None:
        assert self._exchange is not None
        try:
            self._want_to_write(self._exchange.flush())
        except psycopg.Error as error:
            self._fail(error)

    def _want_to_write(self, writes: bool) -> None:
        if writes and not self._writes:
            self.loop.add_writer(self._descriptor, self._writable)
        elif self._writes and not writes:
            self.loop.remove_writer(self._descriptor)
        self._writes = writes

    def _has_more(self) -> bool:
        """A large answer comes in many parts; handlers may run for milliseconds between two turns of the loop."""
        arrived = select.poll()
        arrived.register(self._descriptor, select.POLLIN)
        return bool(arrived.poll(0))

    def _look_at_time(self) -> None:
        """One timer for all messages: most are answered in a fraction of its time."""
        self._timer = None
        if self.is_busy and self.loop.time() < self._answer_due_s:
            self._timer = self.loop.call_at(self._answer_due_s, self._look_at_time)
        elif self.is_busy:
            self.give_up()

    def give_up(self) -> None:
        """The server did not answer in time, or nobody waits for it any more."""
        if self.is_busy:
            self._fail(psycopg.OperationalError(SILENT))
        else:
            self.let_go()

    def finish(self, timeout_s: float) -> None:
        if self._exchange is None:
            self.let_go()
            return
        self.connection.silent_for_s = timeout_s
        try:
            self._connections.wait(self._exchange)
        except psycopg.Error as error:
            self._fail(error)
        else:
            self._end(keeps=False)

    def _end(self, *, keeps: bool) -> None:
        assert self._exchange is not None
        try:
            rows = self._exchange.rows()
        except psycopg.Error as error:  # it may be in a transaction that failed: the pool closes it then
            self._report(FailedMessage(error, self._connections.classified(error, self.connection)), keeps=False)
        else:
            self._report(rows, keeps=keeps)

    def _fail(self, error: psycopg.Error) -> None:
        self.connection.pgconn.finish()
        self._report(FailedMessage(error, self._connections.classified(error, self.connection)), keeps=False)

    def _report(self, answer: Answer, *, keeps: bool) -> None:
        """`keeps`: for the loop's next turns."""
        on_answer, self._exchange, self._on_answer = self._on_answer, None, None
        if not keeps or self.loop.is_closed():
            self.let_go()
        self._turns_left = KEPT_TURNS
        if on_answer is not None and not self.loop.is_closed():  # nobody waits on a loop that was closed
            on_answer(answer)
        if not self._is_counting and self in self._all_held:
            self._is_counting = True
            self.loop.call_soon(self._count_turn)

    def _count_turn(self) -> None:
        self._turns_left -= 1
        self._is_counting = not self.is_busy and self._turns_left > 0 and not self._connections.are_wanted
        if self._is_counting:
            self.loop.call_soon(self._count_turn)
        elif not self.is_busy:
            self.let_go()

    def leave(self) -> None:
        """From another thread: its place in the pool is for others. The connection is the loop's still, which may go on
        at any moment, and then finds that it was cut off."""
        self._was_left = True
        try:
            self._all_held.remove(self)
        except KeyError:
            return
        self._connections.forget(self.connection)
        with suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as own:
            own.shutdown(socket.SHUT_RDWR)

    def let_go(self) -> None:
        """It is closed, or it is between two transactions."""
        try:
            self._all_held.remove(self)  # in one step: two threads may give it up at the same moment
        except KeyError:
            if not self._was_left:
                return
            self._was_left = False
        if self._timer is not None:
            self._timer.cancel()
        if not self.loop.is_closed():
            self.loop.remove_reader(self._descriptor)
            self._want_to_write(False)
        os.close(self._descriptor)
        self._connections.give_back(self.connection)
