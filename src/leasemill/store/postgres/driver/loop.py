"""The driver of an event loop: it sends messages itself, and hands over to a thread what might keep others waiting.

A worker's handlers have the interpreter's lock, and a thread would wait for it; so a message that is a transaction of
its own is sent by the loop, on a connection that is idle, and its answer is awaited with a callback. Everything else
goes on in one of the store's threads, from where it has come:

- a message that leaves a transaction open: a handler may block the loop before the next one, and the rows that are
  locked by then would be locked for as long;
- a message for which no connection is idle, for a thread may wait for one;
- an attempt that was disturbed, for a thread may pause before the next.

A verb is resumed by the callback that reads its answer, not by a task: each turn of the loop costs as much as what a
small message does here. All that concerns a message happens on its loop's thread, but for what is given up with a loop
that was closed: nothing is resumed there. A caller that is cancelled leaves its message under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import psycopg

from leasemill.store.postgres.driver.held_connection import Answer, FailedMessage, HeldConnection, OnAnswer
from leasemill.store.postgres.driver.thread import DISTURBED, Begun, Retries, ThreadDriver
from leasemill.store.postgres.steps import BEGIN, COMMIT, Message, Steps, Transact, Verb

ResultT = TypeVar("ResultT")
OffLoop: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]

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
        """Give up the connections of closed loops, and of loops that stand still and have not read an answer in time:
        nothing else gives them back."""
        for held in tuple(self._held):
            if held.loop.is_closed():
                held.give_up()
            elif held.is_left_behind:
                held.leave()

    def give_up(self) -> None:
        """Give up the connections of other threads' loops."""
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
            if self._is_abandoned:
                self._steps.close()  # nothing is open: every message that is sent here is whole
                return
            if not is_whole(message) or not self._driver.send(message, self._resume_steps):
                self._leave_to_thread(Begun(self._steps, message), 0.0)
        except StopIteration as end:
            self._resume_verb(end.value, None)
        except DISTURBED as error:
            if self._is_abandoned:
                return
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
    """Return True if nothing is open when the message has its answer."""
    return message[0] is not BEGIN or message[-1] is COMMIT
