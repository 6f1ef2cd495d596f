"""Counts what workers of an app report. Read from any thread, whatever the event loop does."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, get_args

from leasemill import __version__
from leasemill.api.app import App
from leasemill.api.observer import End, Observer, Settled
from leasemill.kernel.commands import Expiration, Lease
from leasemill.kernel.model import SECOND, JobState
from leasemill.worker.prometheus.catalogue import (
    CLAIMS,
    COUNTED,
    INFO,
    JOBS,
    LEASES_EXPIRED,
    LEASES_HELD,
    REAPER_LAST_RUN,
    REAPER_STALE,
    RUN,
    SLOTS,
    STORE_CALL,
    STORE_FAILURES,
    TICKS,
    WAIT,
    WORKER_INFO,
)
from leasemill.worker.prometheus.queues import QueueReader
from leasemill.worker.prometheus.samples import Labels, Samples

FOLD: Final = 500
"""So many runs are counted at once: counted one by one, each would cost more than all the rest here."""
EXPIRED_STATES: Final = (JobState.READY, JobState.SUCCEEDED, JobState.DEAD)


@dataclass(frozen=True, slots=True)
class _AtWork:
    slots: int
    counters: Callable[[], Mapping[str, float]]
    queues: QueueReader


class Measures(Observer):
    """Counts for an app. It is added before the worker is created: `app.observers.append(Measures(app))`."""

    is_exporting: ClassVar[bool] = True

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._counted = Samples()
        self._workers: dict[str, _AtWork] = {}
        self._waited: deque[tuple[str, str, float]] = deque()
        self._ran: deque[tuple[str, str, float]] = deque()
        self.on_end: Callable[[], None] = lambda: None
        """Called when a worker has ended, and nothing is counted any more."""
        app.hooks.on_commit.append(lambda took_s: self.store_called("commit", took_s))
        _add_counters(self._counted, {})
        for state in EXPIRED_STATES:
            self._counted.add(LEASES_EXPIRED, (state.value,), 0)

    # What is exported --------------------------------------------------------------------------------------------

    def counters(self) -> Samples:
        """Return the numbers that only rise."""
        with self._lock:
            self._fold()
            found = self._counted.copy()
            workers = list(self._workers.values())
        for worker in workers:
            _add_counters(found, worker.counters())
        return found

    def gauges(self) -> Samples:
        """Return the current numbers of the running workers, without the queues."""
        found = Samples()
        with self._lock:
            workers = dict(self._workers)
        for worker_id, worker in workers.items():
            numbers = worker.counters()
            found.add(WORKER_INFO, (worker_id,))
            found.add(REAPER_LAST_RUN, by=numbers["reaper_recovered_last_run"])
            running, stuck = numbers["running"], numbers["stuck"]
            found.add(LEASES_HELD, by=running - stuck + numbers["queued"])
            for state, count in {"free": worker.slots - running, "running": running - stuck, "stuck": stuck}.items():
                found.add(SLOTS, (state,), max(0, count))
        return found

    def queues(self) -> tuple[Samples, float]:
        """Return the queues' jobs if this process has the elected worker, and for how many seconds it stays elected."""
        found, left_s = Samples(), 0.0
        with self._lock:
            workers = list(self._workers.values())
        for worker in workers:
            samples, seconds = worker.queues.samples()
            found.merge(samples)
            left_s = max(left_s, seconds)
        return found, left_s

    def all(self) -> Samples:
        found = self.counters()
        found.merge(self.gauges())
        found.merge(self.queues()[0])
        found.add(INFO, (__version__,))
        return found

    # What is reported --------------------------------------------------------------------------------------------

    def worker_began(self, worker_id: str, slots: int, counters: Callable[[], Mapping[str, float]]) -> None:
        reader = QueueReader(worker_id, self._app.store)
        with self._lock:
            self._workers[worker_id] = _AtWork(slots, counters, reader)
            for kind, job in self._app.handlers.items():  # from 0: an increase is seen only of what was there before
                for end in get_args(End):
                    self._counted.add(JOBS, (kind, job.queue, end), 0)
        reader.start()

    def worker_ended(self, worker_id: str) -> None:
        with self._lock:
            worker = self._workers.pop(worker_id)
            _add_counters(self._counted, worker.counters())
        worker.queues.stop()
        self.on_end()

    def run_started(self, lease: Lease, waited_s: float | None) -> None:
        if waited_s is not None:
            job = lease.job
            self._waited.append((job.kind, job.queue, waited_s))

    def run_ended(self, lease: Lease, took_s: float) -> None:
        job = lease.job
        self._ran.append((job.kind, job.queue, took_s))
        if len(self._ran) >= FOLD:
            with self._lock:
                self._fold()

    def settled(self, batch: Sequence[Settled], took_s: float) -> None:
        ends = Counter([(one.lease.job.kind, one.lease.job.queue, one.end) for one in batch])
        with self._lock:
            for labels, count in ends.items():
                self._counted.add(JOBS, labels, count)

    def expired(self, expirations: Sequence[Expiration]) -> None:
        with self._lock:
            for expiration in expirations:
                self._counted.add(LEASES_EXPIRED, (expiration.state.value,))
                self._counted.observe(REAPER_STALE, (), expiration.stuck_us / SECOND)

    def _fold(self) -> None:
        """Count the runs that were kept. Appending and popping need no lock, so runs do not wait for a scrape."""
        for metric, kept in ((WAIT, self._waited), (RUN, self._ran)):
            by_labels: defaultdict[Labels, list[float]] = defaultdict(list)
            for _ in range(len(kept)):
                kind, queue, seconds = kept.popleft()
                by_labels[kind, queue].append(seconds)
            for labels, values in by_labels.items():
                self._counted.observe_all(metric, labels, values)

    def store_called(self, verb: str, took_s: float) -> None:
        with self._lock:
            self._counted.observe(STORE_CALL, (verb,), took_s)

    def store_failed(self, verb: str) -> None:
        with self._lock:
            self._counted.add(STORE_FAILURES, (verb,))


def _add_counters(samples: Samples, counters: Mapping[str, float]) -> None:
    """Add the worker's own counters, under the names that they are exported by."""
    for name, metric in COUNTED.items():
        samples.add(metric, by=counters.get(name, 0))
    empty = counters.get("claims_empty", 0)
    samples.add(CLAIMS, ("empty",), empty)
    samples.add(CLAIMS, ("granted",), counters.get("claims", 0) - empty)
    samples.add(TICKS, ("fired",), counters.get("ticks_fired", 0))
    samples.add(TICKS, ("skipped",), counters.get("ticks_skipped", 0))
