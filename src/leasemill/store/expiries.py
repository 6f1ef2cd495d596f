"""Leases that expired: the process that records an expiry logs and counts it, once, whichever of its commands did so.

A worker's reaper and a server listen, to count. What a process records before anybody listens, or where nobody ever
does (a command, a script), is logged here, and kept for the first listener.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from leasemill.kernel.commands import Expiration
from leasemill.kernel.model import SECOND, JobState

LOGGER: Final = logging.getLogger("leasemill.store")
KEPT: Final = 1_000

ExpiryListener: TypeAlias = Callable[[Sequence[Expiration]], None]


def log_expiry(log: logging.Logger, one: Expiration, **fields: Any) -> None:
    is_dead = one.state is JobState.DEAD
    log.log(
        logging.ERROR if is_dead else logging.WARNING,
        "lease of worker %s on job %s expired %.1f s ago: the job is %s",
        one.worker,
        one.job_id,
        one.stuck_us / SECOND,
        "quarantined after too many expirations" if is_dead else one.state,
        extra={"job": one.job_id, "attempt": one.attempt, **fields},
    )


class Expiries:
    """The listeners of one store."""

    def __init__(self) -> None:
        self.listeners: tuple[ExpiryListener, ...] = ()
        self._uncounted: deque[Expiration] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def listen(self, listener: ExpiryListener) -> list[Expiration]:
        """Returns those that were found while nobody listened: they were logged, and are counted by nobody else."""
        with self._lock:
            self.listeners = (*self.listeners, listener)
            uncounted = [*self._uncounted]
            self._uncounted.clear()
        return uncounted

    def forget(self, listener: ExpiryListener) -> None:
        with self._lock:
            self.listeners = tuple(one for one in self.listeners if one != listener)

    def notify(self, expired: Sequence[Expiration]) -> None:
        """Called when they are durable, in whatever thread recorded them."""
        if not expired:
            return
        with self._lock:
            listeners = self.listeners
            if not listeners:
                self._uncounted.extend(expired)
        for listener in listeners:
            listener(expired)
        if not listeners:
            for one in expired:
                log_expiry(LOGGER, one)
