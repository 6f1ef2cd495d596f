"""`http://` the store behind a server. Every command is asked of it; nothing is decided here.

A call goes one way: store, loop (a thread that has the connections), client, and the server's own store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import TypeVar

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.store.base import Store, Watch
from leasemill.store.ends import Subscription
from leasemill.store.http.address import parse_address
from leasemill.store.http.client import HttpClient
from leasemill.store.http.loop import LoopThread
from leasemill.store.http.presence import HttpPresence
from leasemill.store.http.watch import HttpCancellations, watch_end, watch_queues
from leasemill.store.sources import Clock, Entropy

AnswerT = TypeVar("AnswerT")


class HttpStore(Store):
    """A server's jobs. Threads, event loops and forked children may use one object."""

    def __init__(self, url: str, *, entropy: Entropy | None = None, wall: Clock | None = None) -> None:
        super().__init__(entropy, wall)
        address = parse_address(url)
        self.name = address.base
        self._client = HttpClient(address, self.entropy)
        self._thread = LoopThread(f"leasemill {address.base}", self._client.close)
        self._cancellations = HttpCancellations(self._client, self._thread)
        self.presence = HttpPresence(self.run)

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        future = self._thread.submit(self._client.ask(command))
        try:
            answer: AnswerT = future.result()
        except CancelledError:
            raise self._closed() from None
        finally:
            future.cancel()
        self._notify(command, answer)
        return answer

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        check(command)
        future = self._thread.submit(self._client.ask(command))
        try:
            answer: AnswerT = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._thread.is_closed or task is None or task.cancelling():
                raise
            raise self._closed() from None
        self._notify(command, answer)
        return answer

    def watch(self, queues: Sequence[str]) -> Watch:
        return watch_queues(self._client, self._thread, queues)

    def watch_end(self, job_id: str) -> Watch:
        return watch_end(self._client, self._thread, job_id)

    def watch_cancellations(self, wake: Callable[[], None]) -> Subscription:
        return self._cancellations.subscribed.call(wake)

    def close(self) -> None:
        self._thread.close()

    def _notify(self, command: c.Command[AnswerT], answer: AnswerT) -> None:
        if isinstance(command, c.Expire) and isinstance(answer, list):
            self.expiries.notify(answer)

    def _closed(self) -> Unavailable:
        return Unavailable(f"this store, {self.name}, is closed; open another")
