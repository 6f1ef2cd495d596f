"""Who enqueues: threads and event loops, each sharing with its like what may be shared (`verbs/shared.py`).

In threads one of the callers leads. On an event loop the loop itself sends, if a connection is idle, so that a call
costs no change of threads; else one of the store's threads does. A caller that is cancelled leaves its batch alone. A
forked child has none of its parent's callers, and does not touch the connections they use.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from leasemill.kernel import commands as c
from leasemill.store.pipeline import Pipeline
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.verbs import enqueue, shared
from leasemill.store.postgres.verbs.shared import EnqueueTicket, Inserted, SharedBatch
from leasemill.store.postgres.wire.looped import Answer, LoopMessages, MessageFailed
from leasemill.store.postgres.wire.pool import store_closed
from leasemill.store.threads import Threads

BATCH_WEIGHT: Final = 4 * 1024 * 1024
OffLoop = Callable[..., Awaitable[Any]]


class Enqueues:
    """Of one store. `off_loop`: run something in one of the store's threads."""

    def __init__(self, calls: Calls, messages: LoopMessages, threads: Threads, off_loop: OffLoop) -> None:
        self._calls = calls
        self._messages = messages
        self._threads = threads
        self._off_loop = off_loop
        self.after_fork()

    def after_fork(self) -> None:
        self._lines = {are_new: self._line() for are_new in (True, False)}
        self._guard = threading.Lock()
        self._loops: dict[tuple[asyncio.AbstractEventLoop, bool], LoopLine] = {}

    def _line(self) -> Pipeline[EnqueueTicket]:
        return Pipeline(
            lambda tickets: shared.run(self._calls, SharedBatch(tickets)), "leasemill enqueue", BATCH_WEIGHT
        )

    def run(self, command: c.Enqueue) -> list[c.EnqueueOutcome]:
        ticket = shared.ticket(self._calls.database, command)
        if ticket is not None:
            outcomes: list[c.EnqueueOutcome] = self._lines[command.are_new].run(ticket)
            if not ticket.is_alone:
                return outcomes
        return enqueue.run(self._calls, command)

    async def arun(self, command: c.Enqueue) -> list[c.EnqueueOutcome]:
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

    def _loop_line(self, are_new: bool) -> LoopLine:
        loop = asyncio.get_running_loop()
        line = self._loops.get((loop, are_new))
        if line is None:
            with self._guard:
                self._loops = {key: known for key, known in self._loops.items() if not key[0].is_closed()}
                line = self._loops[loop, are_new] = LoopLine(self._calls, self._messages, self._threads, loop)
        return line


class LoopLine:
    """Callers of one event loop. All of it happens on the loop's thread."""

    def __init__(self, calls: Calls, messages: LoopMessages, threads: Threads, loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self._messages = messages
        self._threads = threads
        self._loop = loop
        self._waiting: list[EnqueueTicket] = []
        self._is_busy = False

    async def run(self, ticket: EnqueueTicket) -> None:
        """Until it has its answer or its error, or is left to its caller."""
        future = ticket.for_loop()
        self._waiting.append(ticket)
        if not self._is_busy:
            self._next()
        await future

    def _next(self) -> None:
        tickets = self._take()
        self._is_busy = bool(tickets)
        if not tickets:
            return
        batch = SharedBatch(tickets)
        statements = batch.statements(self._calls.database, self._calls.notifier.channel(), is_repeat=False)
        if not self._messages.send(statements, partial(self._answered, batch)):
            self._run_in_thread(batch)

    def _take(self) -> list[EnqueueTicket]:
        """What waits, as much as makes a sensible batch; who was cancelled waits no more."""
        taken: list[EnqueueTicket] = []
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

    def _answered(self, batch: SharedBatch, answer: Answer) -> None:
        if isinstance(answer, MessageFailed):
            self._run_in_thread(batch, is_repeat=answer.is_lost)
            return
        inserted = batch.inserted(self._calls.database, answer)
        if not batch.are_all_new(inserted):
            self._run_in_thread(batch, inserted)
            return
        batch.finish_all_new()
        self._calls.signal.notify()
        self._finish(batch)

    def _run_in_thread(self, batch: SharedBatch, inserted: Inserted | None = None, *, is_repeat: bool = False) -> None:
        future = self._threads.submit(partial(shared.run, self._calls, batch, inserted, is_repeat=is_repeat))
        future.add_done_callback(lambda _: self._run_by_thread(batch, was_run=not future.cancelled()))

    def _run_by_thread(self, batch: SharedBatch, *, was_run: bool) -> None:
        if not was_run:
            batch.fail(store_closed())
        with suppress(RuntimeError):  # the loop was closed: nobody waits there
            self._loop.call_soon_threadsafe(self._finish, batch)

    def _finish(self, batch: SharedBatch) -> None:
        for ticket in batch.tickets:
            if ticket.future is not None and not ticket.future.done():
                ticket.future.set_result(None)
        self._next()
