"""The watches that callers wait on: for a job that is due, or for a job's end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND
from leasemill.store.base import Store
from leasemill.store.notifications import EndWatch, Signal
from leasemill.store.postgres.waking.listen import Listener

LOOK_EVERY_S: Final = 1.0


class PostgresWatch:
    """Wakes when, after a change of anybody's or when its time has come, a job is due."""

    def __init__(self, store: Store, signal: Signal, listener: Listener, queues: Sequence[str]) -> None:
        self._store = store
        self._queues = tuple(queues)
        self._watch = signal.watch()
        self._arrivals = listener.arrivals
        self._seen = listener.arrivals.count

    def wait(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while True:
            self._watch.wait(0)
            if self._is_notified():
                return True
            try:
                due_us = self._store.due_in(self._queues)
            except LeasemillError:
                return True  # whoever waits will learn why from the verbs
            due_s, left_s = _due_s(due_us), until_s - time.monotonic()
            if due_s <= 0 or left_s <= 0:
                return due_s <= 0
            self._watch.wait(min(left_s, due_s, LOOK_EVERY_S))

    async def wait_async(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while True:
            self._watch.wait(0)
            if self._is_notified():
                return True
            try:
                due_us = await self._store.arun(c.DueIn(self._queues))
            except LeasemillError:
                return True
            due_s, left_s = _due_s(due_us), until_s - time.monotonic()
            if due_s <= 0 or left_s <= 0:
                return due_s <= 0
            await self._watch.wait_async(min(left_s, due_s, LOOK_EVERY_S))

    def close(self) -> None:
        self._watch.close()

    def _is_notified(self) -> bool:
        """A round trip less between a job and the claim that gets it."""
        since, self._seen = self._seen, self._arrivals.count
        return self._arrivals.has_any(self._queues, since)


def _due_s(due_us: int | None) -> float:
    return LOOK_EVERY_S if due_us is None else due_us / SECOND


class PostgresEndWatch:
    """Wakes at the job's end; without a connection that listens it is looked for once a second."""

    def __init__(self, watch: EndWatch, listener: Listener) -> None:
        self._watch = watch
        self._listener = listener

    def wait(self, timeout_s: float) -> bool:
        return self._watch.wait(self._longest_s(timeout_s))

    async def wait_async(self, timeout_s: float) -> bool:
        return await self._watch.wait_async(self._longest_s(timeout_s))

    def close(self) -> None:
        self._watch.close()

    def _longest_s(self, timeout_s: float) -> float:
        return timeout_s if self._listener.is_listening.is_set() else min(timeout_s, LOOK_EVERY_S)
