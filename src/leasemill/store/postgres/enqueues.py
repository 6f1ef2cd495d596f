"""Who enqueues: threads and event loops, each sharing with its like what may be shared (`verbs/shared.py`).

In threads one of the callers leads. On an event loop the loop itself sends, if a connection is idle, so that a call
costs no change of threads; else one of the store's threads does. A caller that is cancelled leaves its batch alone. A
forked child has none of its parent's callers, and does not touch the connections they use.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import psycopg

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.store.pipeline import Pipeline
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.verbs import enqueue, shared
from leasemill.store.postgres.verbs.shared import Inserted, SharedBatch, Ticket
from leasemill.store.postgres.wire.batch import Message
from leasemill.store.postgres.wire.connections import StoreConnection
from leasemill.store.postgres.wire.errors import is_lost
from leasemill.store.postgres.wire.looped import Answer, Sending
from leasemill.store.threads import Threads

BATCH_WEIGHT: Final = 4 * 1024 * 1024
OffLoop = Callable[..., Awaitable[Any]]


class Enqueues:
    """Of one store. `off_loop`: run something in one of the store's threads."""

    def __init__(self, calls: Calls, threads: Threads, off_loop: OffLoop) -> None:
        self._calls = calls
        self._threads = threads
        self._off_loop = off_loop
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._lines = {are_new: self._line() for are_new in (True, False)}
        self._guard = threading.Lock()
        self._loops: dict[tuple[asyncio.AbstractEventLoop, bool], LoopLine] = {}

    def _line(self) -> Pipeline[Ticket]:
        return Pipeline(
            lambda tickets: shared.run(self._calls, SharedBatch(tickets)), "leasemill enqueue", BATCH_WEIGHT
        )

    def run(self, command: c.Enqueue) -> list[c.EnqueueOutcome]:
        self._check_process()
        ticket = shared.ticket(self._calls.database, command)
        if ticket is not None:
            outcomes: list[c.EnqueueOutcome] = self._lines[command.are_new].run(ticket)
            if not ticket.is_alone:
                return outcomes
        return enqueue.run(self._calls, command)

    async def arun(self, command: c.Enqueue) -> list[c.EnqueueOutcome]:
        self._check_process()
        ticket = shared.ticket(self._calls.database, command)
        if ticket is not None:
            await self._loop_line(command.are_new).run(ticket)
            if ticket.error is not None:
                raise ticket.error
            if not ticket.is_alone:
                answer: list[c.EnqueueOutcome] = ticket.answer
                return answer
        outcomes: list[c.EnqueueOutcome] = await self._off_loop(enqueue.run, self._calls, command)
        return outcomes

    def finish(self, timeout_s: float) -> None:
        """Nothing more is sent. What is under way on this thread's event loop is waited for, so long."""
        self._check_process()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        for line in self._known_lines():
            line.close(timeout_s if line.loop is running else None)

    def give_up(self) -> None:
        """What is still under way on other threads' loops is given up."""
        for line in self._known_lines():
            with suppress(RuntimeError):  # it was closed meanwhile
                line.loop.call_soon_threadsafe(line.give_up)

    def _known_lines(self) -> list[LoopLine]:
        with self._guard:
            return list(self._loops.values())

    def _loop_line(self, are_new: bool) -> LoopLine:
        loop = asyncio.get_running_loop()
        line = self._loops.get((loop, are_new))
        if line is None:
            with self._guard:
                for key in [key for key in self._loops if key[0].is_closed()]:
                    self._loops.pop(key).give_up()
                line = self._loops[loop, are_new] = LoopLine(self._calls, self._threads, loop)
        return line

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            self._inherited = self._loops
            self._start_over()


class LoopLine:
    """Callers of one event loop. All of it happens on the loop's thread."""

    def __init__(self, calls: Calls, threads: Threads, loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self._threads = threads
        self.loop = loop
        self._waiting: list[Ticket] = []
        self._is_busy = False
        self._is_closed = False
        self._sending: Sending | None = None

    async def run(self, ticket: Ticket) -> None:
        """Until it has its answer or its error, or is left to its caller."""
        future = ticket.for_loop()
        self._waiting.append(ticket)
        if not self._is_busy:
            self._next()
        await future

    def close(self, timeout_s: float | None) -> None:
        self._is_closed = True
        if self._sending is not None and timeout_s is not None:
            self._sending.finish(timeout_s)

    def give_up(self) -> None:
        if self._sending is not None:
            self._sending.give_up()

    def _next(self) -> None:
        tickets = self._take()
        self._is_busy = bool(tickets)
        if not tickets:
            return
        batch = SharedBatch(tickets)
        connection = None if self._is_closed else self._calls.connections.take_idle()
        if connection is None:
            self._run_in_thread(batch)
            return
        statements = batch.statements(self._calls.database, self._calls.notifier.channel(), is_repeat=False)
        try:
            message = Message(connection, *statements)
        except psycopg.Error as error:
            self._answered(batch, connection, error)
        else:
            self._sending = Sending(self.loop, message, partial(self._answered, batch, connection))
            self._sending.begin()

    def _take(self) -> list[Ticket]:
        """What waits, as much as makes a sensible batch; who was cancelled waits no more."""
        taken: list[Ticket] = []
        weight = 0
        for position, ticket in enumerate(self._waiting):
            if ticket.future is not None and ticket.future.cancelled():
                continue
            weight += ticket.weight
            if taken and weight > BATCH_WEIGHT:
                del self._waiting[:position]
                return taken
            taken.append(ticket)
        self._waiting.clear()
        return taken

    def _answered(self, batch: SharedBatch, connection: StoreConnection, answer: Answer) -> None:
        self._sending = None
        inserted: Inserted | None = None
        is_repeat = isinstance(answer, psycopg.Error) and is_lost(answer, connection)
        self._calls.connections.give_back(connection)
        if not isinstance(answer, psycopg.Error):
            inserted = batch.inserted(self._calls.database, answer)
            if batch.are_all_new(inserted):
                batch.finish_all_new()
                self._calls.signal.notify()
                self._finish(batch)
                return
        self._run_in_thread(batch, inserted, is_repeat=is_repeat)

    def _run_in_thread(self, batch: SharedBatch, inserted: Inserted | None = None, *, is_repeat: bool = False) -> None:
        future = self._threads.submit(partial(shared.run, self._calls, batch, inserted, is_repeat=is_repeat))
        future.add_done_callback(lambda _: self._run_by_thread(batch, was_run=not future.cancelled()))

    def _run_by_thread(self, batch: SharedBatch, *, was_run: bool) -> None:
        if not was_run:
            batch.fail(Unavailable("this PostgreSQL store is closed; open another"))
        with suppress(RuntimeError):  # the loop was closed: nobody waits there
            self.loop.call_soon_threadsafe(self._finish, batch)

    def _finish(self, batch: SharedBatch) -> None:
        for ticket in batch.tickets:
            if ticket.future is not None and not ticket.future.done():
                ticket.future.set_result(None)
        self._next()
