"""The harness that a store's tests hand to the suite: the store, its clock, and a way to open it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from leasemill.store.base import Store
from leasemill.testing.clock import ManualClock


class Harness(Protocol):
    """An empty store for one test.

    `store` is read again at every step, so a harness may return another object each time, as long as what was
    answered before is there. The store's time is `clock`; it draws every token once, also when it was reopened.
    """

    @property
    def clock(self) -> ManualClock: ...

    @property
    def store(self) -> Store: ...

    def reopen(self) -> None:
        """Close a durable store and open it again; nothing for one that ends with its process."""


class KeptHarness:
    """A store that is opened once: for stores that end with their process."""

    def __init__(self, open_store: Callable[[ManualClock], Store]) -> None:
        self.clock = ManualClock()
        self._store = open_store(self.clock)

    @property
    def store(self) -> Store:
        return self._store

    def reopen(self) -> None:
        """There is nothing to come back to."""

    def close(self) -> None:
        self._store.close()


class StayingOpen:
    """Another harness's store, which stays open from here on: for what time does to a store that is in use. One that
    is opened may record first which leases expired meanwhile."""

    def __init__(self, harness: Harness) -> None:
        self.clock = harness.clock
        self.store = harness.store
        self.store.totals()

    def reopen(self) -> None:
        raise AssertionError("it was to stay open")


class DurableHarness:
    """A store that can be closed and opened again by the same call."""

    def __init__(self, open_store: Callable[[ManualClock], Store]) -> None:
        self.clock = ManualClock()
        self._open = open_store
        self._store = open_store(self.clock)

    @property
    def store(self) -> Store:
        return self._store

    def reopen(self) -> None:
        self._store.close()
        self._store = self._open(self.clock)

    def close(self) -> None:
        self._store.close()


class ReopeningHarness(DurableHarness):
    """The store is closed and opened again before every step of every test."""

    @property
    def store(self) -> Store:
        self.reopen()
        return self._store
