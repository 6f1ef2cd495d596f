"""Waiting for what happens at a server: a call that is answered when it happened, or when its time has passed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Final

from leasemill.errors import LeasemillError
from leasemill.store.backoff import backoff_s
from leasemill.store.http.client import HttpClient
from leasemill.store.http.loop_thread import LoopThread
from leasemill.store.notifications import Cancellations
from leasemill.wire import requests as r

POLL_S: Final = 30.0
"""The longest single call; then the next one waits on."""
EARLY_S: Final = 0.1
"""A server that is stopping answers before the time: the next call goes to its successor."""


class HttpWatch:
    """A store's Watch. `ask`: asks the server what is new since the state given, and waits up to the seconds given."""

    def __init__(
        self, client: HttpClient, thread: LoopThread, ask: Callable[[float, str], r.WatchQueues | r.WatchEnd]
    ) -> None:
        self._client = client
        self._thread = thread
        self._ask = ask
        self._seen = ""

    def wait(self, timeout_s: float) -> bool:
        waiting = self._thread.submit(self._wait(timeout_s))
        try:
            return waiting.result()
        except CancelledError:
            return True  # the store was closed, as the next call will say
        finally:
            waiting.cancel()

    async def wait_async(self, timeout_s: float) -> bool:
        waiting = self._thread.submit(self._wait(timeout_s))
        try:
            return await asyncio.wrap_future(waiting)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._thread.is_closed or task is None or task.cancelling():
                raise
            return True

    def close(self) -> None:
        """Do nothing: a watch holds nothing between waits."""

    async def _wait(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while True:
            began = time.monotonic()
            wait_s = min(max(0.0, until - began), POLL_S)
            try:
                watched: r.Watched = await self._client.ask_waiting(self._ask(wait_s, self._seen), wait_s)
            except LeasemillError:
                return True  # whoever waits learns why from the next call
            self._seen = watched.seen
            now = time.monotonic()
            if watched.has_changed or now >= until:
                return watched.has_changed
            if now - began < min(wait_s, EARLY_S):
                await asyncio.sleep(min(EARLY_S, until - now))


def watch_queues(client: HttpClient, thread: LoopThread, queues: Sequence[str]) -> HttpWatch:
    names = tuple(queues)
    return HttpWatch(client, thread, lambda wait_s, _: r.WatchQueues(names, wait_s))


def watch_end(client: HttpClient, thread: LoopThread, job_id: str) -> HttpWatch:
    return HttpWatch(client, thread, lambda wait_s, seen: r.WatchEnd(job_id, wait_s, seen))


class HttpCancellations:
    """Calls its subscribers when the server reports a cancellation. It asks only while there are subscribers."""

    def __init__(self, client: HttpClient, thread: LoopThread) -> None:
        self._client = client
        self._thread = thread
        self._polling: Future[None] | None = None
        self.subscribed = Cancellations(self._changed)

    def after_fork(self) -> None:
        """Forget the parent's subscribers, which are not in this process, and what polls for them."""
        self._polling = None
        self.subscribed.reset()

    def _changed(self) -> None:
        if self.subscribed and self._polling is None:
            self._polling = self._thread.submit(self._poll())
        elif not self.subscribed and self._polling is not None:
            self._polling.cancel()
            self._polling = None

    async def _poll(self) -> None:
        seen, failures = "", 0
        while True:
            try:
                watched: r.Watched = await self._client.ask_waiting(r.WatchCancellations(POLL_S, seen), POLL_S)
            except LeasemillError:
                failures += 1
                await asyncio.sleep(backoff_s(failures, 0.5))
                continue
            failures = 0
            if watched.has_changed:
                self.subscribed.notify()
            elif watched.seen == seen:
                await asyncio.sleep(EARLY_S)  # its time has passed, or the server is stopping
            seen = watched.seen
