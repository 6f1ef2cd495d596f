"""The reaper of `leasemill serve`: it recovers expired leases where no worker of ours runs, and finds dead workers.

Claims look for expired leases too (L7); the reaper looks where no client claims. Each expiry that the store records is
counted and logged once. A worker that listens counts them and runs its hooks, so they are reported with the answer to
one of its calls. Where no worker listens (clients in other languages), or none called in time, the server counts and
logs them itself.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from leasemill.api.observer import Observer
from leasemill.kernel.commands import Expiration
from leasemill.kernel.model import SECOND
from leasemill.store.base import Store
from leasemill.store.notifications import Expiries
from leasemill.wire.expired import MOST, written
from leasemill.worker.housekeeping import Chore, Housekeeping
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import Observers
from leasemill.worker.prometheus.catalogue import (
    COUNTED,
    LEASES_EXPIRED,
    REAPER_LAST_RUN,
    REAPER_STALE,
    Metric,
)
from leasemill.worker.prometheus.measures import EXPIRED_STATES
from leasemill.worker.prometheus.samples import Samples, exposition
from leasemill.worker.reaper import Reaper

KEPT: Final = 1_000
KEPT_S: Final = 15.0
"""The time that an expiry waits for a worker; also the time after its last call in which a worker is expected to call
again. A worker that is at work calls every two seconds, for its record."""


class ExpiredLeases:
    """Called in any thread."""

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.left = Expiries()
        """The expiries that no worker fetched: for the server to count."""
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
        """Return, for a worker that listens, the expiries that are not reported yet, as the value of a header."""
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
    """The reaper of a server, in a thread beside its event loop."""

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
        """Return its metrics in Prometheus's format, under the names that workers have for the same."""
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
