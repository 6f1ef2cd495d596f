"""Who is at work: one small record per worker, published now and then. Soft state, never in the log, safe to lose.

The store has the place for them (`store.presence`); this says what is in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, json

if TYPE_CHECKING:  # `leasemill workers` reads records and needs none of what runs jobs
    from leasemill.worker.execution import Execution


class RunningJob(Struct, frozen=True, omit_defaults=True):
    job: str
    kind: str
    attempt: int
    seconds: float
    done: float | None = None
    total: float | None = None
    note: str = ""


class WorkerRecord(Struct, frozen=True):
    """What a worker says of itself. Times are seconds of its wall clock since the epoch."""

    worker: str
    host: str
    pid: int
    started_at: float
    published_at: float
    interval_s: float
    queues: dict[str, int]
    concurrency: int
    is_stopping: bool
    running: list[RunningJob]
    counters: dict[str, float]
    mismatched: dict[str, int] = {}
    """Kinds of jobs that it gave back because its code cannot run them, and how many times."""
    instance: str = ""
    """Tells two workers of one id apart."""
    stuck: list[RunningJob] = []
    """Slots taken by handlers whose job has timed out or was lost, and that have not returned."""

    @property
    def is_stuck(self) -> bool:
        """No slot is left that could run anything."""
        return len(self.stuck) >= self.concurrency

    def is_stale(self, age_s: float) -> bool:
        """Not published for several intervals, by the store's clock: stopped, cut off or dead."""
        return age_s > 4 * self.interval_s + 1


def running_job(execution: Execution, now: float) -> RunningJob:
    lease = execution.lease
    seconds = max(0.0, now - execution.started_at) if execution.started_at else 0.0
    progress = None if execution.context is None else execution.context.latest_progress
    if progress is None:
        return RunningJob(lease.job.id, lease.job.kind, lease.attempt, seconds)
    return RunningJob(
        lease.job.id, lease.job.kind, lease.attempt, seconds, progress.done, progress.total, progress.note
    )


encode_record = json.Encoder().encode
decode_record = json.Decoder(WorkerRecord).decode
