"""Records the leases that expired, so that their jobs run again, and notices workers that died.

Claims and refused reports record expiries too; the store notifies the reaper of each, so that its counters and log
lines miss none.
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
from leasemill.store.records import records
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import NOBODY, Observers

log = logging.getLogger("leasemill.worker")

BATCH: Final = 1_000


class Reaper:
    """`expire`, with its counters."""

    def __init__(self, worker_id: str, store: Store, metrics: Metrics, observers: Observers = NOBODY) -> None:
        self.on_quarantined: Callable[[str], None] | None = None
        """Called with the id of each job that is DEAD, in any thread."""
        self._worker_id = worker_id
        self._store = store
        self._metrics = metrics
        self._observers = observers
        self._lock = threading.Lock()
        self._unattributed: Counter[str] = Counter()
        store.expiries.listen(self.recovered)

    def close(self) -> None:
        self._store.expiries.forget(self.recovered)

    def run(self) -> None:
        """Record every expiry there is."""
        before = self._metrics.reaper_recovered
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
        """Count expiries, whatever recorded them. Called in any thread."""
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
            stuck_s = expiration.stuck_us / SECOND
            is_dead = expiration.state is JobState.DEAD
            if is_dead and self.on_quarantined is not None:
                self.on_quarantined(expiration.job_id)
            log.log(
                logging.ERROR if is_dead else logging.WARNING,
                "lease of worker %s expired %.1f s ago: the job is %s",
                expiration.worker,
                stuck_s,
                "quarantined after too many expirations" if is_dead else expiration.state,
                extra={"job": expiration.job_id, "attempt": expiration.attempt, "worker": self._worker_id},
            )

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
