"""How fast jobs end, and how fast the store answers: what decides how many jobs are held ahead of their slots (C9).

Measured on the event loop. What must never happen here: a pace that stands still while nothing ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from leasemill.worker import pacing


class Prefetch:
    """Measures the pace of one worker."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._pace = 0.0
        self._known_s = 0.0
        self._round_trip_s = 0.0
        self._measured_at = monotonic()
        self.ended_count = 0
        """Jobs that ended since the latest claim was answered; whoever ends one adds it."""

    def answered(self, sent_at: float) -> None:
        """A claim that was sent then has been answered."""
        now = self._monotonic()
        self._round_trip_s = pacing.round_trip_s(self._round_trip_s, now - sent_at)
        elapsed_s = now - self._measured_at
        self._pace = pacing.pace(self._pace, self.ended_count, elapsed_s, self._known_s)
        self._known_s = pacing.known_s(self._known_s, self.ended_count, elapsed_s)
        self.ended_count, self._measured_at = 0, now

    def wanted(self, most: int) -> int:
        """Return how many jobs to hold ahead."""
        return pacing.prefetch(self._pace, self._round_trip_s, most)

    def too_many(self, queued: int) -> int:
        """How many of the jobs that wait for a slot will not have one soon, at the pace of this moment."""
        elapsed_s = self._monotonic() - self._measured_at
        return pacing.too_many_ahead(queued, pacing.pace(self._pace, self.ended_count, elapsed_s, self._known_s))
