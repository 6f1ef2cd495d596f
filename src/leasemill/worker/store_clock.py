"""How far this machine's clock is from the store's. Nothing is decided by it (L8), but a difference is reported.

A clock that is far off makes no tick early or late, and ends no lease. But what handlers read from it is wrong, and so
is a `run_at` that they compute; and where the store is a folder, the store's own clock may be the wrong one.

A folder's clock follows a step forward of the machine's (a virtual machine that resumes, a time service that corrects
it), if a worker has seen the step and all others agree. A worker that was apart from its start is not believed: its
clock may be wrong alone. A step back is left to an operator: every job that was written meanwhile has to be changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from leasemill.kernel.model import SECOND
from leasemill.operator.wording import instant
from leasemill.operator.workers import ahead_or_behind, are_apart
from leasemill.store.presence import Presence
from leasemill.store.worker_records import records

log = logging.getLogger("leasemill.worker")

NANOSECONDS_PER_SECOND: Final = 1_000_000_000
FOLLOWED_S: Final = 86_400.0
"""A step forward as long as this, or longer, is left to an operator as well: `leasemill wal clock --set`."""
SEEN_BY_ALL_S: Final = 15.0
"""Every worker reads the store's time every 5 s, and publishes its record every 2 s."""


class StoreClock:
    """Compares the two whenever the worker reads the store's time. Logged once, when they are apart, and when they
    agree again."""

    def __init__(
        self,
        worker_id: str,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker_id = worker_id
        self._wall_ns = wall_ns
        self._monotonic = monotonic
        self._stepped_at: float | None = None
        """When this machine's clock was first found apart, after it had agreed."""
        self._has_agreed = False
        self._is_reported = False
        self.ahead_s = 0.0
        """How far this machine's clock is ahead of the store's; negative: behind."""

    def observe(self, store_now: int) -> None:
        wall_ns = self._wall_ns()
        self.ahead_s = wall_ns / NANOSECONDS_PER_SECOND - store_now / SECOND
        is_apart = are_apart(self.ahead_s)
        if not is_apart:
            self._has_agreed, self._stepped_at = True, None
        elif self._has_agreed and self._stepped_at is None:
            self._stepped_at = self._monotonic()
        if is_apart and not self._is_reported:
            log.error(
                "this machine's clock is %s the store's (%s against %s): schedules and leases follow the store's; "
                "check this machine's time service first; see docs/failures/clock-jump.md",
                *(ahead_or_behind(self.ahead_s), instant(wall_ns // 1_000), instant(store_now)),
                extra={"worker": self._worker_id},
            )
        elif self._is_reported and not is_apart:
            log.warning("this machine's clock agrees with the store's again", extra={"worker": self._worker_id})
        self._is_reported = is_apart

    def is_to_be_followed(self, presence: Presence) -> bool:
        """W17: this machine's clock was stepped forward while this worker ran, by less than a day, and long enough ago
        for the others to have published that they see the same; and they do."""
        if self._stepped_at is None or not 0 < self.ahead_s < FOLLOWED_S:
            return False
        if self._monotonic() - self._stepped_at < SEEN_BY_ALL_S:
            return False
        others = (one for one, age_s in records(presence) if one.worker != self._worker_id and not one.is_stale(age_s))
        return not any(are_apart(one.clock_ahead_s - self.ahead_s) for one in others)
