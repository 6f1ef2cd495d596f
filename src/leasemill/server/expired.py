"""The expiries that the server's store recorded: each is counted and logged once.

A worker that listens counts them and runs its hooks, so they are reported with the answer to one of its calls. Where no
worker listens (clients in other languages), or none came for one in time, the server counts and logs it itself.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from leasemill.kernel.commands import Expiration
from leasemill.store.base import Store
from leasemill.store.notifications import Expiries
from leasemill.wire.expired import MOST, written

KEPT: Final = 1_000
KEPT_S: Final = 15.0
"""How long one waits for a worker; also how long after its latest call a worker is counted on to come again. A worker
that is at work calls every two seconds, for its record."""


class ExpiredLeases:
    """Called in any thread."""

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.left = Expiries()
        """Those that no worker came for: for the server to count."""
        self._store = store
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._found: deque[tuple[float, Expiration]] = deque()
        self._listened_at = -math.inf
        self._keep(store.expiries.listen(self._keep))

    def _keep(self, expired: Sequence[Expiration]) -> None:
        now = self._monotonic()
        with self._lock:
            self._found.extend((now, one) for one in expired)
        self.sweep()

    def expect_listener(self) -> None:
        """A worker that listens has sent a command: what that records is for its answer."""
        self._listened_at = self._monotonic()

    def take(self) -> bytes | None:
        """For a worker that listens: those that were reported to nobody yet, as the value of a header."""
        self._listened_at = self._monotonic()
        if not self._found:
            return None
        with self._lock:
            taken = [self._found.popleft()[1] for _ in range(min(MOST, len(self._found)))]
        return written(taken) if taken else None

    def sweep(self) -> None:
        """Leave to the server what no worker comes for."""
        now = self._monotonic()
        is_anybody_there = now - self._listened_at < KEPT_S
        left: list[Expiration] = []
        with self._lock:
            while self._found:
                is_kept = now - self._found[0][0] < KEPT_S and len(self._found) <= KEPT
                if is_kept and is_anybody_there:
                    break
                left.append(self._found.popleft()[1])
        self.left.notify(left)

    def close(self) -> None:
        self._store.expiries.forget(self._keep)
        self._listened_at = -math.inf
        self.sweep()
