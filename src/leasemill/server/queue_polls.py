"""The calls that wait for jobs of one set of queues: one watch, one task, and a line of those who wait.

When a job is due, the first in line gets a claim; as long as every claim is granted, twice as many are made at once. So
a single job costs three claims however many wait, and a burst is served quickly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND
from leasemill.store.backoff import backoff_s
from leasemill.store.base import Store, Watch

LOOK_EVERY_S: Final = 1.0
"""The interval of claims without a notification: they find leases that have expired (L7)."""
CLAIMS_AT_ONCE: Final = 16
LINGER_S: Final = 5.0
"""The time for which an unused watch is kept: a client that polls comes back soon, and a new watch is not cheap."""


class Waiting:
    """A claim that waits in line."""

    def __init__(self, command: c.Claim) -> None:
        self.command = command
        self.leases: asyncio.Future[list[c.Lease]] = asyncio.get_running_loop().create_future()
        self.is_claiming = False
        self.is_over = False
        """True if its time has passed or its caller has gone: nothing more is claimed for it."""


class QueuePolls:
    """Lives as long as somebody is joined, and a little longer. `on_close` also closes the watch, which may block."""

    def __init__(
        self, store: Store, queues: tuple[str, ...], watch: Watch, on_close: Callable[[QueuePolls, Watch], None]
    ) -> None:
        self._store = store
        self._queues = queues
        self._watch = watch
        self._on_close = on_close
        self._line: deque[Waiting] = deque()
        self._watchers: set[asyncio.Future[bool]] = set()
        self._members = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self.is_closed = False
        self.failure: LeasemillError | None = None
        self.changes = 0
        """Counts what was noticed: a claim that found nothing before the latest change must look again."""
        self._task = asyncio.ensure_future(self._serve())

    @property
    def is_idle(self) -> bool:
        return self._members == 0 and self._lingering is not None

    @contextmanager
    def joined(self) -> Iterator[None]:
        self._members += 1
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        try:
            yield
        finally:
            self._members -= 1
            if self._members == 0 and not self.is_closed:
                self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self.close)

    def add(self, waiting: Waiting) -> None:
        self._line.append(waiting)
        if self.is_closed or self._is_stopping:
            self.give_up(waiting)

    def give_up(self, waiting: Waiting) -> None:
        """Nothing more for this one; a claim that is under way is waited for."""
        waiting.is_over = True
        if not waiting.is_claiming:
            self._line.remove(waiting)
            waiting.leases.set_result([])

    def watcher(self) -> asyncio.Future[bool]:
        """Done when a job is due."""
        watcher: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._watchers.add(watcher)
        return watcher

    def forget(self, watcher: asyncio.Future[bool]) -> None:
        self._watchers.discard(watcher)

    def stop(self) -> None:
        self._is_stopping = True
        self._wake(is_due=False)
        self._dismiss()

    def _dismiss(self) -> None:
        for waiting in list(self._line):
            self.give_up(waiting)

    async def _serve(self) -> None:
        fruitless, must_look = 0, True
        try:
            while True:
                due_us = await self._store.arun(c.DueIn(self._queues))
                is_due = due_us == 0
                if is_due:
                    self._wake(is_due=True)
                granted = await self._claim_for_line() if is_due or must_look else 0
                if is_due and granted == 0:
                    fruitless += 1  # it is due, and cannot be had: its limit is reached, or another takes it
                    await asyncio.sleep(0 if fruitless == 1 else backoff_s(fruitless, self._store.entropy.jitter()))
                else:
                    fruitless = 0
                due_s = LOOK_EVERY_S if due_us is None or is_due else due_us / SECOND
                must_look = not await self._watch.wait_async(min(due_s, LOOK_EVERY_S))
                self.changes += 1
        except LeasemillError as error:
            self._fail(error)
        finally:
            self._on_close(self, self._watch)

    async def _claim_for_line(self) -> int:
        """Claim for the callers in line, and return how many claims were granted."""
        granted, size = 0, 1
        while self._line and not self._is_stopping:
            first = [self._line.popleft() for _ in range(min(size, len(self._line)))]
            for waiting in first:
                waiting.is_claiming = True
            grants = await asyncio.gather(*(self._claim_for(waiting) for waiting in first))
            self._line.extendleft(waiting for waiting in reversed(first) if not waiting.leases.done())
            granted += grants.count(True)
            if False in grants:
                break
            size = min(2 * size, CLAIMS_AT_ONCE)
        if self._is_stopping:
            self._dismiss()
        return granted

    async def _claim_for(self, waiting: Waiting) -> bool | None:
        """Return True if a job was granted; None: the store was not asked, or failed."""
        try:
            leases = [] if waiting.is_over else await self._store.arun(waiting.command)
        except LeasemillError as error:
            waiting.leases.set_exception(error)
            return None
        finally:
            waiting.is_claiming = False
        is_asked = leases or not waiting.is_over
        if leases or waiting.is_over:
            waiting.leases.set_result(leases)
        return bool(leases) if is_asked else None

    def _wake(self, *, is_due: bool) -> None:
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(is_due)
        self._watchers.clear()

    def _fail(self, error: LeasemillError) -> None:
        """Report to all waiting callers that the store is unavailable; they ask again."""
        self.failure = error
        self.is_closed = True
        self._wake(is_due=True)
        while self._line:
            self._line.popleft().leases.set_exception(error)

    def close(self) -> None:
        """Close the watch. No caller waits on it any more."""
        self.is_closed = True
        self._task.cancel()
