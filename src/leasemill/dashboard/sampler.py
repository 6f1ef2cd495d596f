"""Counts the store for all viewers: one thread, whoever looks and however many do.

Counting costs the store something, so it is done for a fiftieth of the time at most. Where each process has a copy of
the state, that copy is kept fresh while somebody looks at a page that is read from it; otherwise it follows a busy
worker for a twentieth of the time at most, and what waits is estimated. What must never happen here: a reading that
grows with the number of viewers, or a thread that dies because the store was away.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from leasemill.dashboard.history import History, TotalsAt
from leasemill.dashboard.page_cache import PageCache
from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, Job, JobState
from leasemill.store.base import Store
from leasemill.store.readings import Pulse
from leasemill.store.worker_records import WorkerRecord, records

WATCHED_INTERVAL_S: Final = 1.0
IDLE_INTERVAL_S: Final = 10.0
WATCHED_FOR_S: Final = 15.0
SHARE_OF_TIME: Final = 50
"""A sample that took so long is followed by a pause of that many times as long."""
KEPT_UP_S: Final = 0.1
IDLE_KEPT_UP_S: Final = 1.0
KEPT_UP_SHARE: Final = 0.05
"""The share of the time to keep up with a busy worker, while no viewed page is read from the copy."""
COUNTED_WITHIN_S: Final = 60.0
"""A count is at most this old beside a worker that is always faster than that; then the copy catches up."""
QUICK_S: Final = 0.1
TIMINGS_INTERVAL_S: Final = 5.0
TIMED_JOBS: Final = 200
TIMED_WITHIN_S: Final = 15 * 60
QUEUES_SHOWN: Final = 500
LIMITS_SHOWN: Final = 500
RATE_WITHIN_S: Final = 60
GONE_WORKERS_KNOWN: Final = 10_000
TROUBLES: Final = (LeasemillError, OSError)
"""Reading a store may raise these: on `file:` workers' records are files, and a process may run out of descriptors."""
ENDED: Final = (JobState.SUCCEEDED, JobState.FAILED, JobState.DEAD, JobState.CANCELLED)


class Quantiles(Struct, frozen=True):
    """Quantiles of durations in microseconds; None if there were none."""

    median: int | None = None
    p95: int | None = None
    count: int = 0


class Worked(Struct, frozen=True):
    """A worker as it last published itself."""

    record: WorkerRecord
    age_s: float

    @property
    def is_stale(self) -> bool:
        return self.record.is_stale(self.age_s)


class Sample(Struct, frozen=True):
    """The counts of one moment. Times are the store's."""

    number: int
    at: int
    totals: c.Totals
    queues: tuple[c.QueueView, ...] = ()
    queue_rates: dict[str, float] = {}
    """Jobs that ended per second, for queues that were also counted a while ago. Retention counts against it."""
    queue_arrivals: dict[str, float] = {}
    """New jobs per second, for the same queues."""
    limits: dict[str, c.LimitView] = {}
    workers: tuple[Worked, ...] = ()
    waits: Quantiles = Quantiles()
    runs: Quantiles = Quantiles()
    took_s: float = 0.0
    """How long the count took; in an estimated sample, the count that it goes on from."""
    counted_at: int = 0

    @property
    def is_estimated(self) -> bool:
        """Counting takes long here: since then, what waits has been estimated from what came and was claimed."""
        return self.counted_at != self.at

    @property
    def oldest_due_at(self) -> int | None:
        dues = [one.oldest_available_at for one in self.queues if one.oldest_available_at is not None]
        return min((at for at in dues if at <= self.at), default=None)

    @property
    def failed(self) -> int:
        return self.totals.counts[JobState.FAILED] + self.totals.counts[JobState.DEAD]

    @property
    def live_workers(self) -> int:
        return sum(not one.is_stale for one in self.workers)


class Sampler:
    """Samples in the background. `latest` and `history` may be read from any thread."""

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self.history = History()
        self.page_cache = PageCache()
        self.latest: Sample | None = None
        self._counted: Sample | None = None
        self._counted_s = 0.0
        self._count_again_at = 0.0
        self._estimating_s = 0.0
        self.trouble: str | None = None
        """The reason why the store cannot be counted now, if there is one."""
        self._counters = _Counters()
        self._queue_ended = _Rises()
        self._queue_jobs = _Rises()
        self._slow: tuple[Quantiles, Quantiles, dict[str, c.LimitView]] = (Quantiles(), Quantiles(), {})
        self._slow_at = 0.0
        self._watched_at = 0.0
        self._read_at = 0.0
        self._sampling = threading.Lock()
        self._starting = threading.Lock()
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def watched(self, *, is_read: bool = False) -> None:
        """Somebody looks: the thread is started, and samples often for a while. `is_read`: at what is read from the
        store, and not at samples alone."""
        is_new = self._monotonic() - self._watched_at > WATCHED_FOR_S
        self._watched_at = self._monotonic()
        if is_read:
            self._read_at = self._watched_at
        with self._starting:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="leasemill-dashboard", daemon=True)
                self._thread.start()
        if is_new:
            self._wake.set()

    def changed(self) -> None:
        """Somebody acted: count again, at once if that is quick, and read the limits again with it. The act is done: a
        store that does not answer now is shown as trouble, and nothing is raised."""
        self._slow_at = 0.0
        if self.latest is None or self.latest.took_s < QUICK_S:
            try:
                self.sample()
            except TROUBLES as error:
                self.trouble = str(error)
        else:
            self._count_again_at = -COUNTED_WITHIN_S
            self._wake.set()

    def close(self) -> None:
        with self._starting:
            self._is_closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join()

    def sample(self) -> Sample:
        """Count the store now."""
        with self._sampling:
            began = self._monotonic()
            if began - self._slow_at >= TIMINGS_INTERVAL_S:
                self._slow = (*timings(self._store), {one.name: one for one in self._store.limits(limit=LIMITS_SHOWN)})
                self._slow_at = began
            waits, runs, limits = self._slow
            totals, queues = self._store.totals(), tuple(self._store.queues(limit=QUEUES_SHOWN))
            now = self._store.time()
            workers = tuple(Worked(record, age_s) for record, age_s in records(self._store.presence))
            number = 1 if self.latest is None else self.latest.number + 1
            took_s = self._monotonic() - began
            rates = self._queue_ended.rates(now, {one.name: _ended(one) for one in queues})
            arrivals = self._queue_jobs.rates(now, {one.name: sum(one.counts.values()) for one in queues})
            self._counters.add(one.record for one in workers)
            sample = Sample(
                *(number, now, totals, queues, rates, arrivals, limits, workers, waits, runs, took_s), counted_at=now
            )
            self._counted, self._counted_s = sample, self._monotonic()
            self._count_again_at = self._counted_s + SHARE_OF_TIME * took_s
            return self._took(sample)

    def estimate(self, pulse: Pulse | None = None) -> Sample:
        """Count if that is due, else go on from the last count with what can be read at once: the pulse. One that is
        given comes from a copy that is behind, and would have to catch up before it is counted. A job that is retried
        waits again without being new, so it is missed until the next count: few, where there are enough to count for
        long."""
        counted, due_at = self._counted, self._count_again_at + (0.0 if pulse is None else COUNTED_WITHIN_S)
        if counted is None or self._monotonic() >= due_at:
            return self.sample()
        with self._sampling:
            began = self._monotonic()
            if pulse is None:
                pulse, now = self._store.pulse(), self._store.time()
            else:  # the store's time would have to catch up
                now = counted.at + round(SECOND * (began - self._counted_s))
            workers = tuple(Worked(record, age_s) for record, age_s in records(self._store.presence))
            self._counters.add(one.record for one in workers)
            totals = counted.totals
            came, claimed = pulse.seq - totals.seq, pulse.fence - totals.fence
            waiting = max(0, totals.counts[JobState.READY] + came - claimed)
            counts = totals.counts | {JobState.READY: waiting, JobState.LEASED: pulse.leased}
            totals = replace(totals, counts=counts, fence=pulse.fence, seq=pulse.seq)
            self._estimating_s = self._monotonic() - began
            number = counted.number if self.latest is None else self.latest.number
            return self._took(replace(counted, number=number + 1, at=now, totals=totals, workers=workers))

    def _took(self, sample: Sample) -> Sample:
        self.history.add(self._reading(sample))
        self.latest, self.trouble = sample, None
        return sample

    def _run(self) -> None:
        due_at = 0.0
        while not self._is_closed:
            is_due, began = self._wake.is_set() or self._monotonic() >= due_at, self._monotonic()
            self._wake.clear()
            is_watched = began - self._watched_at < WATCHED_FOR_S
            kept_up_s = KEPT_UP_S if is_watched else IDLE_KEPT_UP_S
            is_read = began - self._read_at < WATCHED_FOR_S
            try:
                pulse = None
                if self.trouble is None:
                    pulse = self._store.keep_up(None if is_read else KEPT_UP_SHARE * kept_up_s)
                if pulse is not None:  # the least that can be read may take longer
                    kept_up_s = max(kept_up_s, (self._monotonic() - began) / KEPT_UP_SHARE)
                if is_due:
                    self.estimate(pulse)
            except TROUBLES as error:
                self.trouble, is_due = str(error), True
            if is_due:
                interval_s = WATCHED_INTERVAL_S if is_watched else IDLE_INTERVAL_S
                due_at = began + max(interval_s, SHARE_OF_TIME * self._estimating_s)
            self._wake.wait(max(kept_up_s / 10, min(kept_up_s, due_at - self._monotonic())))

    def _reading(self, sample: Sample) -> TotalsAt:
        counts = sample.totals.counts
        return TotalsAt(
            sample.at,
            counts[JobState.READY],
            counts[JobState.LEASED],
            sample.failed,
            sample.totals.seq,
            sample.totals.fence,
            self._counters.expired,
            self._counters.refused,
        )


def _ended(queue: c.QueueView) -> int:
    return sum(queue.counts[state] for state in ENDED)


class _Rises:
    """Keeps how fast the counts of queues rose over the last minute, by name."""

    def __init__(self) -> None:
        self._counts: deque[tuple[int, dict[str, int]]] = deque(maxlen=RATE_WITHIN_S + 1)

    def rates(self, now: int, counts: dict[str, int]) -> dict[str, float]:
        """Return the rates per second of queues that were also counted a while ago."""
        self._counts.append((now, counts))
        while now - self._counts[0][0] > RATE_WITHIN_S * SECOND:
            self._counts.popleft()
        at, before = self._counts[0]
        if now - at < SECOND:
            return {}
        return {
            name: max(0, count - before[name]) * SECOND / (now - at) for name, count in counts.items() if name in before
        }


class _Counters:
    """What workers count about expiries and refusals, added up over workers that come and go. One that was not heard of
    for a while is known when it is back: what it had counted before is not added again."""

    def __init__(self) -> None:
        self.expired = 0
        self.refused = 0
        self._known: dict[str, tuple[int, int]] | None = None

    def add(self, found: Iterable[WorkerRecord]) -> None:
        latest = {f"{one.worker}/{one.instance}": _expired_and_refused(one) for one in found}
        if self._known is not None:
            for name, (expired, refused) in latest.items():
                expired_before, refused_before = self._known.get(name, (0, 0))
                self.expired += max(0, expired - expired_before)
                self.refused += max(0, refused - refused_before)
        gone = [(name, one) for name, one in (self._known or {}).items() if name not in latest]
        self._known = dict(gone[-GONE_WORKERS_KNOWN:]) | latest


def _expired_and_refused(record: WorkerRecord) -> tuple[int, int]:
    counted = record.counters
    return int(counted.get("reaper_recovered", 0) + counted.get("deaths", 0)), int(counted.get("refused", 0))


# How long jobs waited and ran ------------------------------------------------------------------------------------


def timings(store: Store) -> tuple[Quantiles, Quantiles]:
    """Of jobs that ended lately, in a bounded sample: those enqueued before the one that has been held longest, or the
    newest ones if none is held."""
    held = store.leases(limit=1)
    oldest = store.job(held[0].job_id) if held else None
    page = store.jobs(limit=TIMED_JOBS, after=0 if oldest is None else oldest.seq, newest_first=True)
    since = store.time() - TIMED_WITHIN_S * SECOND
    recent = [job for job in page.jobs if job.executions and (job.executions[-1].finished_at or 0) >= since]
    return quantiles(_waits(recent)), quantiles(_runs(recent))


def _waits(jobs: Sequence[Job]) -> Iterator[int]:
    for job in jobs:
        spec, first = job.spec, job.executions[0]
        due_at = max(job.created_at, job.created_at + spec.delay_us if spec.run_at is None else spec.run_at)
        if first.attempt == 1:
            yield max(0, first.leased_at - due_at)


def _runs(jobs: Sequence[Job]) -> Iterator[int]:
    for job in jobs:
        last = job.executions[-1]
        if last.started_at is not None and last.finished_at is not None:
            yield max(0, last.finished_at - last.started_at)


def quantiles(durations: Iterable[int]) -> Quantiles:
    found = sorted(durations)
    if not found:
        return Quantiles()
    return Quantiles(found[(len(found) - 1) // 2], found[min(len(found) - 1, int(len(found) * 0.95))], len(found))
