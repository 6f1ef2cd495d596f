"""The reaper of `leasemill serve`: expired leases are recovered although no worker of ours runs.

Claims look for them too (L7). This one looks where nobody claims, counts and logs what no worker comes for, and notices
workers that died.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from leasemill.api.observer import Observer
from leasemill.kernel.commands import Expiration
from leasemill.kernel.model import SECOND
from leasemill.server.expired import ExpiredLeases
from leasemill.store.base import Store
from leasemill.worker.exporting.catalogue import (
    COUNTED,
    LEASES_EXPIRED,
    REAPER_LAST_RUN,
    REAPER_STALE,
    Metric,
)
from leasemill.worker.exporting.measures import EXPIRED_STATES
from leasemill.worker.exporting.samples import Samples, exposition
from leasemill.worker.housekeeping import Chore, Housekeeping
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import Observers
from leasemill.worker.reaper import Reaper

log = logging.getLogger("leasemill.server")

REAPER_S: Final = 5.0
STOP_S: Final = 2.0
COUNTERS: Final = ("reaper_runs", "reaper_recovered", "dead_workers")
EXPORTED: Final[tuple[Metric, ...]] = (
    *(COUNTED[name] for name in COUNTERS),
    REAPER_LAST_RUN,
    LEASES_EXPIRED,
    REAPER_STALE,
)


class _Expired(Observer):
    """Counts expiries by state, and how long jobs were stuck."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted = Samples()
        for state in EXPIRED_STATES:
            self._counted.add(LEASES_EXPIRED, (state.value,), 0)

    def expired(self, expirations: Sequence[Expiration]) -> None:
        with self._lock:
            for expiration in expirations:
                self._counted.add(LEASES_EXPIRED, (expiration.state.value,))
                self._counted.observe(REAPER_STALE, (), expiration.stuck_us / SECOND)

    def samples(self) -> Samples:
        with self._lock:
            return self._counted.copy()


class ServerReaper:
    """One server's, in a thread beside its event loop."""

    def __init__(self, store: Store, expired: ExpiredLeases) -> None:
        name = f"serve:{socket.gethostname()}:{os.getpid()}"
        self.metrics = Metrics()
        self._counted = _Expired()
        self._expired = expired
        self._has_ended = threading.Event()
        self._reaper = Reaper(name, store, self.metrics, Observers([self._counted], name), expired.left)
        self._housekeeping = Housekeeping(
            name,
            [Chore("reaper", lambda: REAPER_S, self.run)],
            self.metrics,
            jitter=store.entropy.jitter,
            on_end=self._ended,
        )

    def start(self) -> None:
        self._housekeeping.start()

    def stop(self) -> None:
        """Wait for the run that is under way, but not for a store that does not answer."""
        self._housekeeping.stop()
        self._has_ended.wait(STOP_S)

    def close(self) -> None:
        self._reaper.close()

    def run(self) -> None:
        self._reaper.run()
        self._expired.sweep()

    def exposition(self) -> str:
        """Its metrics, under the names that workers have for the same, in Prometheus's format."""
        samples = self._counted.samples()
        counters = asdict(self.metrics)
        for name in COUNTERS:
            samples.add(COUNTED[name], by=counters[name])
        samples.add(REAPER_LAST_RUN, by=counters["reaper_recovered_last_run"])
        return exposition(samples, EXPORTED)

    def _ended(self, error: BaseException | None) -> None:
        self._has_ended.set()
        if error is not None:
            log.error("the reaper has ended, only claims recover expired leases now: %s", error, exc_info=error)
