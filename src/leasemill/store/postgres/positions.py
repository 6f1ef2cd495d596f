"""How far claims got, so that none of them walks the dead rows behind it.

While somebody holds a snapshot, rows that were claimed stay in the index of `ready`, and a claim that began at its head
would step over all of them. A process remembers where its claims got to (`Positions`), a little behind the clock:
commits arrive out of order. Once a second, and whenever a claim finds nothing, it looks from the watermark
(`watermarks.py`), behind which there is no job: what others put behind the position is found there.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

RANKS: Final = 10
FULL_LOOK_S: Final = 1.0
BEHIND_US: Final = 250_000
"""How far behind the clock a position stays: commits that take longer are found by the next full look."""
EXPIRY_FULL_LOOK_S: Final = 60.0
EXPIRY_LOOK_S: Final = 2.0
"""L7: how long claims that find jobs may leave expired leases alone."""

SET_BACK_US: Final = 1_000_000
"""A step of the server's clock that is noticed: less than watermarks stay behind it."""

LAST: Final = (math.inf, 0)
"""After every place."""

Key: TypeAlias = tuple[str, int]
"""A queue and a rank."""
ScanKey: TypeAlias = tuple[str, int, int, int]
"""A row of `ready` by its key: queue, rank, available_at, seq."""


class Scan(NamedTuple):
    """Where one claim looks: from a position, or (None) from the watermark."""

    keys: list[Key]
    starts: list[tuple[int, int] | None]

    @property
    def is_full(self) -> bool:
        return not any(self.starts)

    def served(self, queues: Sequence[str] | None) -> Sequence[Key]:
        """Return the keys whose queues were looked through (None: all); a paused queue is not."""
        return self.keys if queues is None else [key for key in self.keys if key[0] in queues]

    def parameters(self) -> dict[str, Any]:
        return {
            "queues": [queue for queue, _ in self.keys],
            "ranks": [rank for _, rank in self.keys],
            "from_ats": [None if start is None else start[0] for start in self.starts],
            "from_seqs": [0 if start is None else start[1] for start in self.starts],
        }


class Positions:
    """Where claims of this process got to, for each queue and rank."""

    def __init__(self) -> None:
        self.after_fork()
        self._reached: dict[Key, tuple[int, int]] = {}
        self._put: dict[Key, tuple[int, int]] = {}
        """The first place where this process put a job since a claim got past it."""
        self._claimed: Counter[Key] = Counter()
        self._looked_fully_at_s = -FULL_LOOK_S
        self.claimed_at_s = -math.inf
        self._ahead_us = -math.inf
        """How far the server's clock was ahead of this process's, at most."""
        self.was_set_back = False
        """True if a claim saw that the server's clock had been set back. One whose answer took long looks the same."""

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def scan(self, queues: Sequence[str], *, is_full: bool = False) -> Scan:
        at_s = time.monotonic()
        keys = [(queue, rank) for queue in dict.fromkeys(queues) for rank in range(RANKS)]
        with self._lock:
            if is_full or at_s - self._looked_fully_at_s >= FULL_LOOK_S:
                self._reached.clear()
                self._looked_fully_at_s = at_s
            return Scan(keys, [self._reached.get(key) for key in keys])

    def advance(self, keys: Sequence[Key], claimed: Sequence[ScanKey], now: int, *, is_exhausted: bool) -> None:
        """A claim looked through these and took these jobs. `is_exhausted`: there was nothing else for it to take."""
        last = {(queue, rank): (at, seq) for queue, rank, at, seq in claimed}
        newest = (now - BEHIND_US, 0)
        ahead_us = now - time.monotonic() * 1_000_000
        with self._lock:
            if ahead_us < self._ahead_us - SET_BACK_US:
                self.was_set_back, self._ahead_us = True, ahead_us
            elif ahead_us > self._ahead_us:
                self._ahead_us = ahead_us
            if claimed:
                self.claimed_at_s = time.monotonic()
                self._claimed.update((queue, rank) for queue, rank, _, _ in claimed)
            final = None if is_exhausted or not claimed else claimed[-1][:2]
            for key in keys:
                reached = min(newest, last[key]) if key == final else newest
                put = self._put.pop(key, reached)
                self._reached[key] = min(reached, put)
                if key == final:
                    break

    def lower(self, places: Iterable[ScanKey]) -> None:
        """This process put jobs at these places: its next claim looks there."""
        first: dict[Key, tuple[int, int]] = {}
        for queue, rank, at, seq in places:
            key, place = (queue, rank), (at, seq)
            if place < first.get(key, LAST):
                first[key] = place
        with self._lock:
            for key, place in first.items():
                self._put[key] = min(place, self._put.get(key, place))
                if place < self._reached.get(key, place):
                    self._reached[key] = place

    def worn(self, count: int) -> list[Key]:
        """Where this process took so many jobs since it was last asked to forget them."""
        with self._lock:
            return [key for key, claimed in self._claimed.items() if claimed >= count]

    def forget_claimed(self, keys: Iterable[Key]) -> None:
        with self._lock:
            for key in keys:
                self._claimed.pop(key, None)


class ExpiryPosition:
    """Until when expired leases were looked for: later looks begin there, but for a full one now and then. And when
    they were last looked for: a claim that is due for it looks, whatever there is to claim (L7)."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._from_at = 0
        self._looked_fully_at_s = -EXPIRY_FULL_LOOK_S
        self._looked_at_s = -math.inf

    @property
    def is_look_due(self) -> bool:
        return abs(self._now_s() - self._looked_at_s) >= EXPIRY_LOOK_S  # a clock that tests set may be set back

    def looks(self) -> None:
        """Somebody looks now."""
        self._looked_at_s = self._now_s()

    def look_again(self) -> None:
        """The next claim is to look too: there is more, or there may be."""
        self._looked_at_s = -math.inf

    def from_at(self) -> int:
        is_full = time.monotonic() - self._looked_fully_at_s >= EXPIRY_FULL_LOOK_S
        return 0 if is_full else self._from_at

    def found_none(self, from_at: int, now: int) -> None:
        """All that had expired by now is recorded. Statements look a little further back: commits take their time."""
        self._from_at = now
        self.looks()
        if from_at == 0:
            self._looked_fully_at_s = time.monotonic()
