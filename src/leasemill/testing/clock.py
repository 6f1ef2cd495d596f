"""Time and randomness under a test's control."""

from __future__ import annotations

import random
import threading
from datetime import timedelta

from leasemill.kernel.model import SECOND


class ManualClock:
    """A clock that moves only by `advance`."""

    def __init__(self, now: int = 1_700_000_000 * SECOND) -> None:
        self._now = now
        self._lock = threading.Lock()

    def now(self) -> int:
        return self._now

    def advance(self, by: timedelta | None = None, *, us: int = 0, s: float = 0) -> None:
        """Move by a duration, forwards or (a step of the machine's clock) backwards."""
        step = us + round(s * SECOND) + (0 if by is None else by // timedelta(microseconds=1))
        with self._lock:
            self._now += step


class SeededEntropy:
    """Ids, tokens and jitter that a seed decides."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def new_id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def tokens(self, count: int) -> list[str]:
        return [f"{self._random.getrandbits(128):032x}" for _ in range(count)]

    def jitter(self) -> float:
        return self._random.random()
