"""The overview that `leasemill top` shows, made of a reading of the store.

A reading asks the store; everything else is pure. Every question is bounded by a limit, and an overview knows what it
shows only a part of. Times left and ages are by the store's clock (L8).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from leasemill.kernel.commands import JobFilter, LeaseView, QueueView, Totals
from leasemill.kernel.model import REDRIVEN_STATES, SECOND, Job, JobState
from leasemill.kernel.read.filter import last_error
from leasemill.operator.rates import Counted, Flow, Rates
from leasemill.store.base import Store
from leasemill.store.worker_records import RunningJob, WorkerRecord, records

QUEUES_READ: Final = 200
LEASES_READ: Final = 1_000
FAILURES_READ: Final = 100
FAILURES_KEPT_US: Final = 10 * SECOND
"""Failures are read again when their number has changed, and after this time: it is the dearest of the questions."""


class QueueOrder(StrEnum):
    NAME = "name"
    READY = "ready"
    OLDEST = "oldest"


class Failures(Struct, frozen=True):
    """Jobs that were FAILED or DEAD at `at`; the latest first, of those jobs that were enqueued last."""

    at: int
    jobs: tuple[Job, ...]


class StoreReading(Struct, frozen=True):
    """A reading of the store and of the workers' records. `at`: the store's time."""

    store: str
    at: int
    totals: Totals
    queues: list[QueueView]
    leases: list[LeaseView]
    workers: list[tuple[WorkerRecord, float]]
    failures: Failures

    def counted(self) -> Counted:
        return Counted(self.at, self.totals, {queue.name: queue.counts for queue in self.queues})

    @property
    def failures_total(self) -> int:
        return sum(self.totals.counts[state] for state in REDRIVEN_STATES)


def read(store: Store, before: StoreReading | None = None) -> StoreReading:
    at, totals = store.time(), store.totals()
    queues = store.queues(limit=QUEUES_READ)
    leases = store.leases(limit=LEASES_READ) if totals.timed_leases else []
    workers = records(store.presence)
    return StoreReading(store.name, at, totals, queues, leases, workers, _failures(store, at, totals, before))


def _failures(store: Store, at: int, totals: Totals, before: StoreReading | None) -> Failures:
    number = sum(totals.counts[state] for state in REDRIVEN_STATES)
    if number == 0:
        return Failures(at, ())
    if before is not None and number == before.failures_total and at - before.failures.at < FAILURES_KEPT_US:
        return before.failures
    page = store.jobs(JobFilter(states=REDRIVEN_STATES), limit=FAILURES_READ, newest_first=True)
    return Failures(at, tuple(sorted(page.jobs, key=lambda job: job.updated_at, reverse=True)))


# The overview --------------------------------------------------------------------------------------------------


class QueueLine(Struct, frozen=True):
    """`in_per_s`, `out_per_s`: None until there are two readings. `oldest_due_s`: for how long the first job that could
    be claimed has been due; None: none is."""

    queue: str
    is_paused: bool
    jobs: dict[JobState, int]
    in_per_s: float | None
    out_per_s: float | None
    oldest_due_s: float | None


class WorkerLine(Struct, frozen=True):
    worker: str
    host: str
    version: str
    slots: int
    running: int
    stuck: int
    heartbeat_s: float
    """Since its latest heartbeat."""
    up_s: float
    succeeded: int
    queues: list[str]
    is_stopping: bool
    is_stale: bool
    """True if it has missed several heartbeats."""
    is_quiet: bool = False
    """True if it claims nothing, by order of an operator."""


class RunningLine(Struct, frozen=True):
    """A lease. `left_s` is negative when it has expired; `ran_s` is None until its handler was started."""

    job: str
    kind: str
    queue: str
    attempt: int
    worker: str
    left_s: float
    ran_s: float | None
    progress: str
    is_at_risk: bool
    """True if it has expired, or its worker sends no heartbeats."""


class FailureLine(Struct, frozen=True):
    job: str
    kind: str
    queue: str
    state: JobState
    attempts: int
    seconds_ago: float
    error: str


class Overview(Struct, frozen=True):
    """The overview of a store. `is_part` has the lists that were cut off where they were read."""

    store: str
    at: int
    jobs: dict[JobState, int]
    in_per_s: float | None
    out_per_s: float | None
    queues: list[QueueLine]
    workers: list[WorkerLine]
    running: list[RunningLine]
    failures: list[FailureLine]
    leases_total: int
    failures_total: int
    is_part: list[str]


def overview(
    reading: StoreReading, rates: Rates, *, elapsed_us: int = 0, order: QueueOrder = QueueOrder.NAME
) -> Overview:
    """The overview of a reading that is `elapsed_us` old: leases count down between two readings."""
    now = reading.at + elapsed_us
    elapsed_s = elapsed_us / SECOND
    whole = rates.whole()
    workers = [_worker(record, age_s + elapsed_s) for record, age_s in reading.workers]
    is_alive = {one.worker for one in workers if not one.is_stale}
    reported = {(job.job, job.attempt): job for record, _ in reading.workers for job in record.running}
    running = [_running(lease, now, is_alive, reported) for lease in reading.leases]
    cut = {
        "queues": len(reading.queues) == QUEUES_READ,
        "running": len(reading.leases) == LEASES_READ,
        "failures": len(reading.failures.jobs) < reading.failures_total,
    }
    return Overview(
        reading.store,
        now,
        dict(reading.totals.counts),
        _rounded(whole.entered if whole else None),
        _rounded(whole.ended if whole else None),
        _ordered([_queue(queue, now, rates.queue(queue.name)) for queue in reading.queues], order),
        sorted(workers, key=lambda one: (one.is_stale, one.worker)),
        sorted(running, key=lambda one: (not one.is_at_risk, one.left_s)),
        [_failure(job, now) for job in reading.failures.jobs],
        max(reading.totals.timed_leases, len(reading.leases)),
        max(reading.failures_total, len(reading.failures.jobs)),
        [name for name, is_cut in cut.items() if is_cut],
    )


def _queue(queue: QueueView, now: int, flow: Flow | None) -> QueueLine:
    oldest = queue.oldest_available_at
    return QueueLine(
        queue.name,
        queue.is_paused,
        dict(queue.counts),
        _rounded(flow.entered if flow else None),
        _rounded(flow.ended if flow else None),
        None if oldest is None or oldest > now else _seconds(now - oldest),
    )


def _ordered(queues: list[QueueLine], order: QueueOrder) -> list[QueueLine]:
    match order:
        case QueueOrder.NAME:
            return queues
        case QueueOrder.READY:
            return sorted(queues, key=lambda one: -one.jobs[JobState.READY])
        case QueueOrder.OLDEST:
            return sorted(queues, key=lambda one: -(one.oldest_due_s or 0.0))


def _worker(record: WorkerRecord, age_s: float) -> WorkerLine:
    return WorkerLine(
        record.worker,
        record.host,
        record.version,
        record.concurrency,
        len(record.running),
        len(record.stuck),
        round(age_s, 3),
        round(max(0.0, age_s + record.published_at - record.started_at), 3),
        int(record.counters.get("succeeded", 0)),
        sorted(record.queues),
        record.is_stopping,
        record.is_stale(age_s),
        record.is_quiet,
    )


def _running(
    lease: LeaseView, now: int, is_alive: set[str], reported: Mapping[tuple[str, int], RunningJob]
) -> RunningLine:
    job = reported.get((lease.job_id, lease.attempt))
    return RunningLine(
        lease.job_id,
        lease.kind,
        lease.queue,
        lease.attempt,
        lease.worker,
        _seconds(lease.expires_at - now),
        None if lease.started_at is None else max(0.0, _seconds(now - lease.started_at)),
        "" if job is None else _progress(job),
        lease.expires_at <= now or lease.worker not in is_alive,
    )


def _failure(job: Job, now: int) -> FailureLine:
    spec, error = job.spec, last_error(job) or ""
    return FailureLine(spec.id, spec.kind, spec.queue, job.state, job.attempt, _seconds(now - job.updated_at), error)


def _progress(job: RunningJob) -> str:
    if job.done is None:
        return job.note
    share = f"{job.done:g}" if not job.total else f"{job.done / job.total:.0%}"
    return f"{share} {job.note}".rstrip()


def _seconds(us: int) -> float:
    return round(us / SECOND, 3)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)
