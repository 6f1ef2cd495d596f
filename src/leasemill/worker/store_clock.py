"""How far this machine's clock is from the store's. Nothing is decided by it (L8), but a difference is reported.

A clock that is far off makes no tick early or late, and ends no lease. But what handlers read from it is wrong, and so
is a `run_at` that they compute; and where the store is a folder, the store's own clock may be the wrong one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from leasemill.kernel.model import SECOND
from leasemill.operator.clocks import ahead_or_behind, are_apart
from leasemill.operator.times import instant

log = logging.getLogger("leasemill.worker")

NANOSECONDS_PER_SECOND: Final = 1_000_000_000


class StoreClock:
    """Compares the two whenever the worker reads the store's time. Logged once, when they are apart, and when they
    agree again."""

    def __init__(self, worker_id: str, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._worker_id = worker_id
        self._wall_ns = wall_ns
        self._is_reported = False
        self.ahead_s = 0.0
        """How far this machine's clock is ahead of the store's; negative: behind."""

    def observe(self, store_now: int) -> None:
        wall_ns = self._wall_ns()
        self.ahead_s = wall_ns / NANOSECONDS_PER_SECOND - store_now / SECOND
        is_apart = are_apart(self.ahead_s)
        if is_apart and not self._is_reported:
            log.error(
                "this machine's clock is %s the store's (%s against %s): schedules and leases follow the store's; "
                "set the clock that is wrong",
                *(ahead_or_behind(self.ahead_s), instant(wall_ns // 1_000), instant(store_now)),
                extra={"worker": self._worker_id},
            )
        elif self._is_reported and not is_apart:
            log.warning("this machine's clock agrees with the store's again", extra={"worker": self._worker_id})
        self._is_reported = is_apart
