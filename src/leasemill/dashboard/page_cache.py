"""Readings and rendered pages that are costly, kept for one sample: the store is asked once for all viewers.

What must never happen here: a reading that is kept after an action has changed what it shows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

KEPT: Final = 64

FoundT = TypeVar("FoundT")


class _CachedPage:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.number: int | None = None
        self.found: Any = None


class PageCache:
    """The latest readings, by key. Callers that ask for the same one at the same time wait for one reading."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: OrderedDict[Hashable, _CachedPage] = OrderedDict()

    def once(self, key: Hashable, number: int, read: Callable[[], FoundT]) -> FoundT:
        """Return what `read` returns for the sample of this number. It is called for the first caller alone."""
        with self._lock:
            reading = self._readings.setdefault(key, _CachedPage())
            self._readings.move_to_end(key)
            while len(self._readings) > KEPT:
                self._readings.popitem(last=False)
        with reading.lock:
            if reading.number != number:
                found = read()
                reading.number, reading.found = None, found  # `kept` looks without the lock
                reading.number = number
            known: FoundT = reading.found
            return known

    def kept(self, key: Hashable, number: int) -> Any:
        """Return what was read for this number, without waiting; None if it was not read yet."""
        with self._lock:
            reading = self._readings.get(key)
        return reading.found if reading is not None and reading.number == number else None

    def forget(self) -> None:
        """Drop all readings, after an action: they may be out of date."""
        with self._lock:
            self._readings.clear()
