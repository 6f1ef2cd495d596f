"""Records the leases that expired, so that their jobs run again, and notices workers that died.

Claims, refused reports and the opening of a folder record expiries too. The store notifies the reaper of those that
this process recorded, whichever call did so, so that each is counted and logged once, in one process. What a process
without a reaper recorded, such as a command, is in that process's log and in no counter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from leasemill.api.observer import Observer
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobState
from leasemill.store.base import Store
from leasemill.store.notifications import Expiries, log_expiry
from leasemill.store.worker_records import records
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import NOBODY, Observers

log = logging.getLogger("leasemill.worker")

BATCH: Final = 1_000


class Reaper:
    """`expire`, with its counters."""

    def __init__(
        self,
        worker_id: str,
        store: Store,
        metrics: Metrics,
        observers: Observers = NOBODY,
        expiries: Expiries | None = None,
    ) -> None:
        """`expiries`: those to count; by default the store's."""
        self.on_quarantined: Callable[[str], None] | None = None
        """Called with the id of each job that is DEAD, in any thread."""
        self._worker_id = worker_id
        self._store = store
        self._metrics = metrics
        self._observers = observers
        self._lock = threading.Lock()
        self._unattributed: Counter[str] = Counter()
        self._expiries = store.expiries if expiries is None else expiries
        self._earlier = self._expiries.listen(self.recovered)
        """Recorded by this process before it was there to count them."""

    def close(self) -> None:
        self._expiries.forget(self.recovered)

    def run(self) -> None:
        """Record every expiry there is."""
        before = self._metrics.reaper_recovered
        earlier, self._earlier = self._earlier, []
        self._count(earlier)
        while len(self._expire()) == BATCH:
            pass
        with self._lock:
            expired, self._unattributed = self._unattributed, Counter()
        self._metrics.reaper_runs += 1
        self._metrics.reaper_recovered_last_run = self._metrics.reaper_recovered - before
        self._observers.notify(Observer.reaper_ran, self._metrics.reaper_recovered_last_run)
        self._notice_dead(expired)

    def _expire(self) -> list[c.Expiration]:
        called_at = time.monotonic()
        expired = self._store.expire(BATCH)
        self._observers.notify(Observer.store_called, "expire", time.monotonic() - called_at)
        return expired

    def recovered(self, expired: Sequence[c.Expiration]) -> None:
        """Count and log expiries that this process recorded. Called in any thread."""
        self._count(expired)
        for expiration in expired:
            log_expiry(log, expiration, worker=self._worker_id)

    def _count(self, expired: Sequence[c.Expiration]) -> None:
        if not expired:
            return
        metrics = self._metrics
        with self._lock:
            self._unattributed.update(expiration.worker for expiration in expired)
            metrics.reaper_recovered += len(expired)
            for expiration in expired:
                stuck_s = expiration.stuck_us / SECOND
                metrics.reaper_stuck_seconds += stuck_s
                metrics.reaper_stuck_seconds_max = max(metrics.reaper_stuck_seconds_max, stuck_s)
        self._observers.notify(Observer.expired, expired)
        for expiration in expired:
            if expiration.state is JobState.DEAD and self.on_quarantined is not None:
                self.on_quarantined(expiration.job_id)

    def _notice_dead(self, expired: Counter[str]) -> None:
        """A worker whose record was not replaced for several intervals; the first to remove it counts it."""
        presence = self._store.presence
        for record, age_s in records(presence):
            worker_id = record.worker
            if worker_id != self._worker_id and record.is_stale(age_s) and presence.remove(worker_id, record.instance):
                self._metrics.dead_workers += 1
                log.error(
                    "worker %s (host %s, pid %d) is dead or stopped: last seen %.0f s ago, %d of its leases expired",
                    worker_id,
                    record.host,
                    record.pid,
                    age_s,
                    expired[worker_id],
                    extra={"worker": self._worker_id, "dead_worker": worker_id},
                )
