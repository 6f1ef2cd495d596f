"""The expiries that the server's store recorded, until somebody who listens is answered."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from leasemill.kernel.commands import Expiration
from leasemill.store.base import Store
from leasemill.wire.expired import MOST, written

KEPT: Final = 1_000
KEPT_S: Final = 60.0


class ExpiredLeases:
    """Called in any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._found: deque[tuple[float, Expiration]] = deque(maxlen=KEPT)
        store.expiries.listen(self._keep)

    def _keep(self, expired: Sequence[Expiration]) -> None:
        now = time.monotonic()
        with self._lock:
            self._found.extend((now, one) for one in expired)

    def take(self) -> bytes | None:
        """Those that were reported to nobody yet, as the value of a header."""
        if not self._found:
            return None
        now = time.monotonic()
        with self._lock:
            taken = [self._found.popleft() for _ in range(min(MOST, len(self._found)))]
        recent = [one for at, one in taken if now - at < KEPT_S]
        return written(recent) if recent else None

    def close(self) -> None:
        self._store.expiries.forget(self._keep)
