"""Messages whose answers an event loop waits for, with callbacks of its own: no thread, and no task to be cancelled.

All that concerns a message happens on its loop's thread, but for what is given up with a loop that was closed. A
message takes a connection that is idle. The loop keeps it for its next turns: if whoever got the answer, or what that
started, sends the next message, as a caller in a loop and a worker do, the connection and its place in the selector are
still there. It keeps none that others wait for, nor the last one: what runs meanwhile may block the loop, and the
worker's threads must not wait for that.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import psycopg
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from leasemill.store.postgres.wire.batch import Message, Sent
from leasemill.store.postgres.wire.connections import Connections, Row, StoreConnection
from leasemill.store.postgres.wire.errors import is_lost

KEPT_TURNS: Final = 4
"""Of the loop: a worker that got jobs accepts them, calls their handlers, and then reports."""


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
        self._held: set[_HeldConnection] = set()
        connections.call_before_waits(self._give_up_closed)

    def after_fork(self) -> None:
        self._inherited = self._held  # the parent's, not ours to use or to close
        self._held = set()

    def send(
        self,
        statements: Sequence[Sent],
        done: Callable[[Answer], None],
        before_commit: Callable[[list[list[Row]]], None] | None = None,
    ) -> bool:
        """On the running loop; `done` is called there, once. False: no connection is idle."""
        held = self._idle(asyncio.get_running_loop())
        if held is None:
            return False
        try:
            message = Message(held.connection, statements, before_commit)
        except psycopg.Error as error:
            held.let_go()
            done(MessageFailed(error, is_lost=True))
        except BaseException:
            held.let_go()  # it is closed, and no place in the pool is lost
            raise
        else:
            held.begin(message, done)
        return True

    def _idle(self, loop: asyncio.AbstractEventLoop) -> _HeldConnection | None:
        idle = None
        for held in tuple(self._held):  # others add theirs meanwhile
            if held.loop is loop:
                idle = idle if held.is_busy else held
            elif held.loop.is_closed():
                held.give_up()
        if idle is not None:
            return idle
        connection = self._connections.take_idle()
        if connection is None:
            return None
        try:
            return _HeldConnection(self._connections, self._held, loop, connection)
        except BaseException as error:
            self._connections.give_back(connection)
            if isinstance(error, OSError):  # too many open files: a thread needs no other
                return None
            raise

    async def ask(
        self, statements: Sequence[Sent], before_commit: Callable[[list[list[Row]]], None] | None = None
    ) -> Answer | None:
        """None: no connection is idle. A caller that is cancelled leaves it under way. `before_commit`: as Message has
        it; whatever it raises would be raised in the loop."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def done(answer: Answer) -> None:
            if not answered.done():
                with suppress(RuntimeError):  # its loop was closed: nobody waits there
                    answered.set_result(answer)

        return await answered if self.send(statements, done, before_commit) else None

    def finish(self, timeout_s: float) -> None:
        """Wait so long for those of this thread's loop, which stands still meanwhile; give up those of closed loops."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        for held in tuple(self._held):
            if held.loop is loop:
                held.finish(timeout_s)
        self._give_up_closed()

    def _give_up_closed(self) -> None:
        """Those of closed loops, and of loops that stand still and have not read an answer in time: nothing else gives
        their connections back."""
        for held in tuple(self._held):
            if held.loop.is_closed():
                held.give_up()
            elif held.is_left_behind:
                held.leave()

    def give_up(self) -> None:
        """Those of other threads' loops."""
        for held in tuple(self._held):
            with suppress(RuntimeError):  # it was closed meanwhile
                held.loop.call_soon_threadsafe(held.give_up)


class _HeldConnection:
    """A connection that a loop has, for one message after the other."""

    def __init__(
        self,
        connections: Connections,
        all_held: set[_HeldConnection],
        loop: asyncio.AbstractEventLoop,
        connection: StoreConnection,
    ) -> None:
        self.loop = loop
        self.connection = connection
        self._connections = connections
        self._all_held = all_held
        self._descriptor = os.dup(connection.fileno())
        """Of our own: libpq closes its own without notice, and if a forked child has that too, the selector would
        report it for ever."""
        self._message: Message | None = None
        self._done: Callable[[Answer], None] | None = None
        """What is called with the answer of the message, once."""
        self._answer_due_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._turns_left = 0
        self._is_counting = False
        self._writes = False
        self._was_left = False
        try:
            loop.add_reader(self._descriptor, self._step, Ready.R)
        except BaseException:
            os.close(self._descriptor)
            raise
        all_held.add(self)

    @property
    def is_busy(self) -> bool:
        return self._message is not None

    @property
    def is_left_behind(self) -> bool:
        """Its loop was stopped, and has not looked when the answer was due."""
        return self.is_busy and not self.loop.is_running() and self.loop.time() > self._answer_due_s

    def begin(self, message: Message, done: Callable[[Answer], None]) -> None:
        self._message, self._done = message, done
        self._answer_due_s = self.loop.time() + self.connection.silent_for_s
        if self._timer is None and math.isfinite(self._answer_due_s):
            self._timer = self.loop.call_at(self._answer_due_s, self._look_at_time)
        self._step(None)

    def _step(self, ready: Ready | None) -> None:
        if self._message is None:
            self.let_go()  # the server has closed it, or has something to say that nobody asked for
            return
        steps = self._message.answers
        try:
            wanted = next(steps) if ready is None else steps.send(ready)
            while ready is not None and wanted == Wait.R and self._has_more():
                wanted = steps.send(Ready.R)
        except StopIteration as end:
            self._end(end.value, keeps=not self._connections.are_wanted)
        except psycopg.Error as error:
            self._fail(error)
        else:
            self._want_to_write(wanted == Wait.RW)

    def _want_to_write(self, writes: bool) -> None:
        if writes and not self._writes:
            self.loop.add_writer(self._descriptor, self._step, Ready.W)
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
            self._fail(psycopg.OperationalError("the server did not respond, the connection was closed"))
        else:
            self.let_go()

    def finish(self, timeout_s: float) -> None:
        if self._message is None:
            self.let_go()
            return
        self.connection.silent_for_s = timeout_s
        try:
            results = self.connection.wait(self._message.answers)
        except psycopg.Error as error:
            self._fail(error)
        else:
            self._end(results, keeps=False)

    def _end(self, results: list[PGresult], *, keeps: bool) -> None:
        assert self._message is not None
        try:
            rows = self._message.rows(results)
        except psycopg.Error as error:  # it may be in a transaction that failed: the pool closes it then
            self._report(MessageFailed(error, is_lost=is_lost(error, self.connection)), keeps=False)
        else:
            self._report(rows, keeps=keeps)

    def _fail(self, error: psycopg.Error) -> None:
        self.connection.pgconn.finish()
        self._report(MessageFailed(error, is_lost=True), keeps=False)

    def _report(self, answer: Answer, *, keeps: bool) -> None:
        """`keeps`: for the loop's next turns."""
        done, self._message, self._done = self._done, None, None
        if not keeps or self.loop.is_closed():
            self.let_go()
        try:
            if done is not None:  # else another thread gave it up at the same moment
                done(answer)
        finally:
            self._turns_left = KEPT_TURNS
            if not (self._is_counting or self.is_busy) and self in self._all_held:
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
