"""The driver of an event loop: it sends messages itself, and hands over to a thread what might keep others waiting.

A worker's handlers have the interpreter's lock, and a thread would wait for it; so a message that is a transaction of
its own is sent by the loop, on a connection that is idle, and its answer is awaited with a callback. Everything else
goes on in one of the store's threads, from where it has come:

- a message that leaves a transaction open: a handler may block the loop before the next one, and the rows that are
  locked by then would be locked for as long;
- a message for which no connection is idle, for a thread may wait for one;
- an attempt that was disturbed, for a thread may pause before the next.

The loop keeps its connection for some turns: if whoever got the answer, or what that started, sends the next message,
as a worker does, the connection and its place in the selector are still there. It keeps none that others wait for, nor
the last one: what runs meanwhile may block the loop, and the worker's threads must not wait for that.

A verb is resumed by the callback that reads its answer, not by a task: each turn of the loop costs as much as what a
small message does here. All that concerns a message happens on its loop's thread, but for what is given up with a loop
that was closed: nothing is resumed there. A caller that is cancelled leaves its message under way.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg

from leasemill.store.postgres.driver.connections import SILENT, Connections
from leasemill.store.postgres.driver.exchange import MessageExchange, Sent, StoreConnection
from leasemill.store.postgres.driver.thread import DISTURBED, Begun, Retries, ThreadDriver
from leasemill.store.postgres.steps import BEGIN, COMMIT, Message, Row, Steps, Transact, Verb

ResultT = TypeVar("ResultT")
OffLoop: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]

KEPT_TURNS: Final = 4
"""Of the loop: a worker that got jobs accepts them, calls their handlers, and then reports."""


class FailedMessage(NamedTuple):
    """A message that failed: with what, and what that means to a caller if the steps do not handle it."""

    error: psycopg.Error
    meaning: Exception


Answer: TypeAlias = list[list[Row]] | FailedMessage
OnAnswer: TypeAlias = Callable[[Answer], None]
OnEnd: TypeAlias = Callable[[Any, BaseException | None], None]


class LoopDriver:
    """Runs verbs on whichever event loop calls."""

    def __init__(self, threads: ThreadDriver, off_loop: OffLoop) -> None:
        """`off_loop`: run something in one of the store's threads."""
        self._threads = threads
        self._connections = threads.connections
        self._statements = threads.statements
        self._off_loop = off_loop
        self._held: set[HeldConnection] = set()
        self._connections.call_before_waits(self._give_up_closed)

    def after_fork(self) -> None:
        self._inherited = self._held  # the parent's, not ours to use or to close
        self._held = set()

    async def run(self, verb: Verb[ResultT]) -> ResultT:
        ended: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()

        def end(result: Any, error: BaseException | None) -> None:
            if ended.done():
                return  # the caller was cancelled
            if error is None:
                ended.set_result(result)
            else:
                ended.set_exception(error)

        under_way = self.start(verb, end)
        try:
            return await ended
        except asyncio.CancelledError:
            under_way.abandon()
            raise

    def start(self, verb: Verb[Any], on_end: OnEnd) -> VerbUnderWay:
        """Run a verb on the running loop, and call `on_end` with its result or its error: at once, if it sends
        nothing."""
        under_way = VerbUnderWay(self, verb, on_end)
        under_way.begin()
        return under_way

    def send(self, message: Message, on_answer: OnAnswer) -> bool:
        """Send a message on the running loop, which calls `on_answer` with the rows or the error. False if no
        connection is idle."""
        held = self._idle(asyncio.get_running_loop())
        if held is None:
            return False
        held.begin([self._statements.sent(call) for call in message], on_answer)
        return True

    def retries(self, unit: Transact) -> Retries:
        return Retries(self._connections, is_repeatable=unit.is_repeatable)

    async def in_thread(
        self, unit: Transact, retries: Retries, begun: Begun | None = None, pause_s: float = 0.0
    ) -> Any:
        """Run a transaction to its end in one of the store's threads."""
        return await self._off_loop(self._threads.transact, unit, retries, begun, pause_s)

    def _idle(self, loop: asyncio.AbstractEventLoop) -> HeldConnection | None:
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
            return HeldConnection(self._connections, self._held, loop, connection)
        except BaseException as error:
            self._connections.give_back(connection)
            if isinstance(error, OSError):  # too many open files: a thread needs no other
                return None
            raise

    def finish(self, timeout_s: float) -> None:
        """Wait so long for the messages of this thread's loop, which stands still meanwhile; give up those of closed
        loops."""
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


class VerbUnderWay:
    """A verb, and the transaction of it that is at work: two generators, resumed one inside the other.

    `begin` runs them as far as the first message; each answer runs them to the next. What a thread has to do is a task,
    and the verb is resumed when that ends.
    """

    def __init__(self, driver: LoopDriver, verb: Verb[Any], on_end: OnEnd) -> None:
        self._driver = driver
        self._verb = verb
        self._on_end = on_end
        self._unit: Transact
        self._retries: Retries
        self._steps: Steps[Any]
        self._in_thread: asyncio.Task[Any] | None = None
        self._is_abandoned = False

    def begin(self) -> None:
        self._resume_verb(None, None)

    def abandon(self) -> None:
        """Nobody waits for it any more: what was sent is carried out, and nothing follows."""
        self._is_abandoned = True
        if self._in_thread is not None:
            self._in_thread.cancel()
        self._verb.close()

    def _resume_verb(self, result: Any, error: BaseException | None) -> None:
        """Run the verb to its next transaction, or to its end."""
        if self._is_abandoned:
            return
        try:
            unit = self._verb.send(result) if error is None else self._verb.throw(error)
        except StopIteration as end:
            self._on_end(end.value, None)
        except BaseException as failed:  # noqa: BLE001  (it is for the caller to handle)
            self._on_end(None, failed)
        else:
            self._unit, self._retries = unit, self._driver.retries(unit)
            self._steps = unit.work(self._retries)
            self._resume_steps(None)

    def _resume_steps(self, answer: Answer | None) -> None:
        """Run the transaction to its next message, or to its end. None: it has not begun."""
        try:
            if isinstance(answer, FailedMessage):
                message = self._throw(answer)
            else:
                message = next(self._steps) if answer is None else self._steps.send(answer)
            if not is_whole(message) or not self._driver.send(message, self._resume_steps):
                self._leave_to_thread(Begun(self._steps, message), 0.0)
        except StopIteration as end:
            self._resume_verb(end.value, None)
        except DISTURBED as error:
            try:
                pause_s = self._retries.next_in_s(error)
            except BaseException as failed:  # noqa: BLE001  (it is for the verb to handle)
                self._resume_verb(None, failed)
            else:
                self._leave_to_thread(None, pause_s)
        except BaseException as error:  # noqa: BLE001  (it is for the verb to handle)
            self._resume_verb(None, error)

    def _throw(self, failed: FailedMessage) -> Message:
        """Steps that do not handle an error end with what it means to a caller."""
        try:
            return self._steps.throw(failed.error)
        except psycopg.Error as error:
            raise (failed.meaning if error is failed.error else error) from error

    def _leave_to_thread(self, begun: Begun | None, pause_s: float) -> None:
        work = self._driver.in_thread(self._unit, self._retries, begun, pause_s)
        self._in_thread = asyncio.get_running_loop().create_task(work)
        self._in_thread.add_done_callback(self._thread_ended)

    def _thread_ended(self, task: asyncio.Task[Any]) -> None:
        self._in_thread = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._resume_verb(None if error is not None else task.result(), error)


def is_whole(message: Message) -> bool:
    """Whether nothing is open when the message has its answer."""
    return message[0] is not BEGIN or message[-1] is COMMIT


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
