"""Calls that wait: for a job to claim, for work to be due, for the end of a job, for a cancellation.

However many wait, there is one watch for each set of queues, and no thread. A job that arrives is claimed for those who
wait longest, a few at a time: no other caller is woken. Nothing is claimed for a caller that has gone, and what was
granted while it went is released.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.machine import check
from leasemill.kernel.model import ENDED_STATES
from leasemill.server.queue_polls import QueuePolls, Waiting
from leasemill.server.request_body import Caller, CallerGone
from leasemill.store.base import Store, Watch
from leasemill.store.notifications import Subscription
from leasemill.store.threads import Threads
from leasemill.wire import requests as r

log = logging.getLogger("leasemill.server")

SETS_KEPT: Final = 64
"""The sets of queues above which those without a waiting caller are not kept."""
OPEN: Final = "open"
GONE: Final = "gone"

AnswerT = TypeVar("AnswerT")


class Polls:
    """The calls of a server that wait. Used from one event loop."""

    def __init__(self, store: Store, threads: Threads, longest_wait_s: float) -> None:
        self._store = store
        self._longest_wait_s = longest_wait_s
        self._threads = threads
        self._queues: dict[tuple[str, ...], asyncio.Future[QueuePolls]] = {}
        self._stopping = asyncio.Event()
        self._cancellations: _Cancellations | None = None
        self.open = 0

    async def claim(self, command: c.Claim, wait_s: float, caller: Caller) -> list[c.Lease]:
        """The leases, as soon as there are any."""
        until = self._until(wait_s)
        if wait_s <= 0 or self.is_stopping:
            leases = await self._store.arun(command)
        else:
            self.open += 1
            try:
                leases = await self._claim_in_time(command, until, caller)
            finally:
                self.open -= 1
        if leases and await caller.is_gone():
            await self._give_back(leases)
            raise CallerGone
        return leases

    async def _claim_in_time(self, command: c.Claim, until: float, caller: Caller) -> list[c.Lease]:
        check(command)
        polls = await self._of(command.queues)
        with polls.joined():
            while True:
                seen = polls.changes
                if await caller.is_gone():
                    raise CallerGone
                leases = await self._store.arun(command)
                if leases or self.is_stopping or time.monotonic() >= until:
                    return leases
                if seen == polls.changes:
                    break
            waiting = Waiting(command)
            polls.add(waiting)
            waits: set[asyncio.Future[Any]] = {waiting.leases, caller.leaving}
            try:
                await asyncio.wait(waits, timeout=until - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
            finally:  # also when the caller's key ends
                if not waiting.leases.done():
                    polls.give_up(waiting)
            return await waiting.leases

    async def watch_queues(self, command: r.WatchQueues, caller: Caller) -> r.Watched:
        polls = await self._of(command.queues)
        with polls.joined():
            if await self._store.arun(c.DueIn(command.queues)) == 0:
                return r.Watched(has_changed=True)
            if self.is_stopping:
                return r.Watched(has_changed=False)
            watcher = polls.watcher()
            try:
                await self._either(asyncio.wait({watcher}, timeout=self._short(command.wait_s)), caller)
            finally:
                polls.forget(watcher)
            return r.Watched(has_changed=watcher.done() and watcher.result())

    async def watch_end(self, command: r.WatchEnd, caller: Caller) -> r.Watched:
        until, seen = self._until(command.wait_s), command.seen or OPEN
        watch = await self._off_loop(self._store.watch_end, command.job_id)
        try:
            while True:
                now_seen = _end_seen(await self._store.arun(c.GetJob(command.job_id)))
                left_s = until - time.monotonic()
                if now_seen != seen or left_s <= 0 or self.is_stopping:
                    return r.Watched(now_seen != seen, now_seen)
                await self._either(watch.wait_async(left_s), caller, self._stopping.wait())
        finally:
            watch.close()

    async def watch_cancellations(self, command: r.WatchCancellations, caller: Caller) -> r.Watched:
        if self._cancellations is None:
            self._cancellations = _Cancellations(asyncio.get_running_loop())
            wake = self._cancellations.notify
            self._cancellations.subscription = await self._off_loop(self._store.watch_cancellations, wake)
        cancellations = self._cancellations
        if command.seen == cancellations.seen and not self.is_stopping:
            changed = cancellations.changed
            await self._either(asyncio.wait({changed}, timeout=self._short(command.wait_s)), caller)
        return r.Watched(command.seen != cancellations.seen and not self.is_stopping, cancellations.seen)

    def _short(self, wait_s: float) -> float:
        return min(wait_s, self._longest_wait_s)

    def _until(self, wait_s: float) -> float:
        return time.monotonic() + self._short(wait_s)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Answer all waiting callers with nothing; from now on no caller waits."""
        self._stopping.set()
        for future in self._queues.values():
            if (polls := _made(future)) is not None:
                polls.stop()
        if self._cancellations is not None:
            self._cancellations.change()

    def close(self) -> None:
        self.stop()
        self._close_idle()
        if self._cancellations is not None and self._cancellations.subscription is not None:
            self._cancellations.subscription.close()

    async def _of(self, queues: Sequence[str]) -> QueuePolls:
        """The polls of these queues, made when the first comes, gone with the last. Join them at once."""
        key = tuple(queues)
        while True:
            future = self._queues.get(key)
            if future is None:
                future = self._queues[key] = asyncio.ensure_future(self._new(key))
            try:
                polls = await asyncio.shield(future)
            except LeasemillError:
                self._queues.pop(key, None)
                raise
            if not polls.is_closed:
                return polls
            if self._queues.get(key) is future:
                del self._queues[key]  # it is about to say so itself
            if polls.failure is not None:
                raise polls.failure

    async def _new(self, key: tuple[str, ...]) -> QueuePolls:
        watch = await self._off_loop(self._store.watch, key)
        if len(self._queues) > SETS_KEPT:
            self._close_idle()
        return QueuePolls(self._store, key, watch, self._closed)

    def _closed(self, polls: QueuePolls, watch: Watch) -> None:
        self._queues = {key: one for key, one in self._queues.items() if polls is not _made(one)}
        if self._threads.submit(watch.close).cancelled():  # the threads have ended
            watch.close()

    def _close_idle(self) -> None:
        for future in self._queues.values():
            polls = _made(future)
            if polls is not None and polls.is_idle:
                polls.close()

    async def _off_loop(self, call: Callable[..., AnswerT], *arguments: Any) -> AnswerT:
        return await asyncio.wrap_future(self._threads.submit(call, *arguments))

    async def _either(self, wait: Coroutine[Any, Any, Any], caller: Caller, *others: Coroutine[Any, Any, Any]) -> None:
        """Wait until one of them is done; a caller that goes away ends both."""
        self.open += 1
        tasks = [asyncio.ensure_future(one) for one in (wait, *others)]
        try:
            await asyncio.wait({caller.leaving, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.open -= 1
            for task in tasks:
                task.cancel()
        if caller.leaving.done():
            raise CallerGone

    async def _give_back(self, leases: list[c.Lease]) -> None:
        try:
            await self._store.arun(c.Release([c.ReleaseReport(lease.job.id, lease.token) for lease in leases]))
        except LeasemillError as error:
            log.warning("jobs of a caller that disconnected were not released (%d): %s", len(leases), error)


def _made(future: asyncio.Future[QueuePolls]) -> QueuePolls | None:
    is_there = future.done() and not future.cancelled() and future.exception() is None
    return future.result() if is_there else None


def _end_seen(job: Any) -> str:
    if job is None:
        return GONE
    return f"{job.state}-{job.updated_at}-{job.attempt}" if job.state in ENDED_STATES else OPEN


class _Cancellations:
    """Counts the cancellations that this server has seen; `seen` distinguishes two servers, and two runs of one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._run = secrets.token_hex(6)
        self._count = 0
        self.changed: asyncio.Future[None] = loop.create_future()
        self.subscription: Subscription | None = None

    @property
    def seen(self) -> str:
        return f"{self._run}-{self._count}"

    def notify(self) -> None:
        """Record a cancellation. May be called in any thread."""
        try:
            self._loop.call_soon_threadsafe(self.count)
        except RuntimeError:
            return  # the loop has ended, and no caller waits in it

    def count(self) -> None:
        self._count += 1
        self.change()

    def change(self) -> None:
        self.changed.set_result(None)
        self.changed = self._loop.create_future()
