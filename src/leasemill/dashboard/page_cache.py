"""What is read or rendered at some cost, once for each sample: however many look at a page, the store is asked once.

What must never happen here: a reading that is kept after an act has changed what it shows.
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
    """By key, the latest ones; those who ask for the same one at the same time wait for one reading."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: OrderedDict[Hashable, _CachedPage] = OrderedDict()

    def once(self, key: Hashable, number: int, read: Callable[[], FoundT]) -> FoundT:
        """What `read` returned for this number, of a sample; it is called if nobody has asked since."""
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
        """What was read for this number, without waiting; None: nobody has asked yet."""
        with self._lock:
            reading = self._readings.get(key)
        return reading.found if reading is not None and reading.number == number else None

    def forget(self) -> None:
        """Something was done: what was read before does not count any more."""
        with self._lock:
            self._readings.clear()
