"""`http://` the store behind a server. Every command is asked of it; nothing is decided here.

A call goes one way: store, client, the server's own store. What waits is in an event loop of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.store.base import Store, Watch
from leasemill.store.http.address import parse_address
from leasemill.store.http.client import HttpClient
from leasemill.store.http.loop_thread import LoopThread
from leasemill.store.http.presence import HttpPresence
from leasemill.store.http.shared_enqueues import SharedEnqueues
from leasemill.store.http.watch import HttpCancellations, watch_end, watch_queues
from leasemill.store.notifications import Subscription
from leasemill.store.system import Entropy
from leasemill.store.threads import Threads, start_over_in_children

AnswerT = TypeVar("AnswerT")

CALLS_AT_A_TIME: Final = 32
"""The most calls of async code at a time; threads make theirs themselves."""


class HttpStore(Store):
    """A server's jobs. Threads, event loops and forked children may use one object."""

    def __init__(self, url: str, *, entropy: Entropy | None = None) -> None:
        super().__init__(entropy)
        address = parse_address(url)
        self.name = address.base
        self._client = HttpClient(address, self.entropy, self.expiries)
        self._enqueues = SharedEnqueues(self._client, self._off_loop)
        self._threads = Threads(CALLS_AT_A_TIME, f"leasemill {address.base}")
        self._waits = LoopThread(f"leasemill {address.base} waits", self._client.close_waiting)
        self._cancellations = HttpCancellations(self._client, self._waits)
        self.presence = HttpPresence(self.run)
        start_over_in_children(self)

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        if isinstance(command, c.Enqueue):
            return cast(AnswerT, self._enqueues.run(command))
        return self._client.ask(command)

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        if isinstance(command, c.Enqueue):
            return cast(AnswerT, await self._enqueues.arun(command))
        return await self._off_loop(self._client.ask, command)

    async def _off_loop(self, function: Callable[..., AnswerT], *arguments: Any) -> AnswerT:
        future = self._threads.submit(function, *arguments)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._waits.is_closed or task is None or task.cancelling():
                raise
            raise self._client.closed() from None  # it had not begun

    def watch(self, queues: Sequence[str]) -> Watch:
        return watch_queues(self._client, self._waits, queues)

    def watch_end(self, job_id: str) -> Watch:
        return watch_end(self._client, self._waits, job_id)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        return self._cancellations.subscribed.call(wake)

    def close(self) -> None:
        self._waits.close()
        self._threads.close()
        self._client.close()
        self._enqueues.close()

    def after_fork(self) -> None:
        """A child has its own connections and locks, whichever of its threads asks first, and if none does."""
        self._waits.after_fork()
        self._client.after_fork()
        self._cancellations.after_fork()
        self._enqueues.after_fork()
