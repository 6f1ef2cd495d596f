"""Callers that enqueue at the same time share a statement: threads with threads, and those of one event loop.

In threads one of the callers leads and sends for all that wait (`store/pipeline.py`). On an event loop the answer to
one batch sends the next, so that a caller that is cancelled leaves its batch alone. A forked child has none of its
parent's callers, and does not touch the connections they use.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Final

from leasemill.kernel import commands as c
from leasemill.store.pipeline import Pipeline
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.driver.loop import LoopDriver
from leasemill.store.postgres.driver.pool import store_closed
from leasemill.store.postgres.driver.thread import ThreadDriver
from leasemill.store.postgres.verbs.enqueue import EnqueueTicket, enqueue, enqueue_shared, ticket

BATCH_WEIGHT: Final = 4 * 1024 * 1024


class EnqueueBatches:
    """Runs the enqueues of one store."""

    def __init__(self, context: VerbContext, threads: ThreadDriver, loops: LoopDriver) -> None:
        self._context = context
        self._threads = threads
        self._loops = loops
        self.after_fork()

    def after_fork(self) -> None:
        self._lines = {are_new: self._line() for are_new in (True, False)}
        self._lock = threading.Lock()
        self._batchers: dict[tuple[asyncio.AbstractEventLoop, bool], LoopBatcher] = {}

    def _line(self) -> Pipeline[EnqueueTicket]:
        return Pipeline(
            lambda tickets: self._threads.run(enqueue_shared(self._context, tickets)), "leasemill enqueue", BATCH_WEIGHT
        )

    def run(self, command: c.Enqueue) -> list[c.EnqueueOutcome]:
        shared = ticket(self._context.known, command)
        if shared is not None:
            outcomes: list[c.EnqueueOutcome] = self._lines[command.are_new].run(shared)
            if not shared.is_alone:
                return outcomes
        return self._threads.run(enqueue(self._context, command))

    async def arun(self, command: c.Enqueue) -> list[c.EnqueueOutcome]:
        shared = ticket(self._context.known, command)
        if shared is not None:
            await self._batcher(command.are_new).run(shared)
            if shared.error is not None:
                raise shared.error
            if not shared.is_alone:
                outcomes: list[c.EnqueueOutcome] = shared.answer
                return outcomes
        return await self._loops.run(enqueue(self._context, command))

    def _batcher(self, are_new: bool) -> LoopBatcher:
        loop = asyncio.get_running_loop()
        batcher = self._batchers.get((loop, are_new))
        if batcher is None:
            with self._lock:
                self._batchers = {key: known for key, known in self._batchers.items() if not key[0].is_closed()}
                batcher = self._batchers[loop, are_new] = LoopBatcher(self._context, self._loops)
        return batcher


class LoopBatcher:
    """Sends the enqueues of one event loop, one batch at a time. All of it happens on the loop's thread."""

    def __init__(self, context: VerbContext, loops: LoopDriver) -> None:
        self._context = context
        self._loops = loops
        self._waiting: list[EnqueueTicket] = []
        self._is_sending = False

    async def run(self, ticket: EnqueueTicket) -> None:
        """Until it has its answer or its error, or is left to its caller."""
        future = ticket.for_loop()
        self._waiting.append(ticket)
        if not self._is_sending:
            self._send_next()
        await future

    def _send_next(self) -> None:
        """Whatever came while a batch was under way makes the next."""
        # One batch at a time: what comes while the server syncs is sent together, so the batches grow by themselves as
        # the disk gets slower, and a lone caller waits for nobody.
        tickets = self._take()
        self._is_sending = bool(tickets)
        if tickets:
            self._loops.start(enqueue_shared(self._context, tickets), partial(self._ended, tickets))

    def _ended(self, tickets: list[EnqueueTicket], _: None, error: BaseException | None) -> None:
        for one in tickets:
            if error is not None:
                one.error = one.error or store_closed()
            if one.future is not None and not one.future.done():
                one.future.set_result(None)
        self._send_next()

    def _take(self) -> list[EnqueueTicket]:
        """Take the waiting calls, as many as make a sensible batch; a caller that was cancelled waits no more."""
        taken: list[EnqueueTicket] = []
        weight = 0
        for position, one in enumerate(self._waiting):
            if one.future is not None and one.future.cancelled():
                continue
            weight += one.weight
            if taken and weight > BATCH_WEIGHT:
                del self._waiting[:position]
                return taken
            taken.append(one)
        self._waiting.clear()
        return taken
