"""What a worker publishes about itself now and then (`store.presence`), and whether it would obey a command (O12).

Records are soft state, safe to lose. This module imports nothing that runs jobs, because handles and `leasemill
workers` read records, too.
"""

from __future__ import annotations

from msgspec import MsgspecError, Struct, json

from leasemill.errors import NotFound, Refused
from leasemill.kernel.model import Order, WorkerOrder
from leasemill.store.presence import Presence


class RunningJob(Struct, frozen=True, omit_defaults=True):
    job: str
    kind: str
    attempt: int
    seconds: float
    done: int | float | None = None
    total: int | float | None = None
    note: str = ""
    pid: int | None = None
    """Of the process of its own that its handler runs in."""


class ProcessIdentity(Struct, frozen=True):
    """One process of all there ever were. `started`: in clock ticks since the boot; `namespace`: of process ids."""

    pid: int
    started: int
    boot: str
    namespace: str


class WorkerRecord(Struct, frozen=True):
    """Times are seconds of the worker's wall clock since the epoch."""

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
    """Distinguishes two workers of one id; the tokens of its leases begin with it."""
    process: ProcessIdentity | None = None
    """None: the system does not show it."""
    stuck: list[RunningJob] = []
    """Slots taken by handlers whose job has timed out or was lost, and that have not returned."""

    schedules: list[str] = []
    """Those that its code declares."""
    supervisor: str = ""
    """The name that its supervisor was given: NAME of NAME.1, NAME.2 and so on."""
    processes: int = 1
    """How many of them there are."""
    version: str = ""
    """Of Leasemill; empty: older than this field."""
    is_exporting: bool = False
    """It exports metrics, and may be the one that counts the jobs in the queues."""
    takes_orders: bool = False
    """False: its version does not know them."""
    order: WorkerOrder | None = None
    """The latest that it has read, and obeys (O13)."""
    clock_ahead_s: float = 0.0
    """How far its machine's clock is ahead of the store's; negative: behind."""

    @property
    def is_quiet(self) -> bool:
        """It claims nothing until an operator resumes it."""
        return self.order is not None and self.order.order is Order.QUIET

    @property
    def claims(self) -> bool:
        """It takes new jobs: it is neither quiet nor about to end."""
        return not self.is_quiet and not self.is_stopping

    @property
    def is_stuck(self) -> bool:
        """No slot is left that could run anything."""
        return len(self.stuck) >= self.concurrency

    def is_stale(self, age_s: float) -> bool:
        """Not published for several intervals, by the store's clock: stopped, cut off or dead."""
        return age_s > self.stale_after_s

    @property
    def stale_after_s(self) -> float:
        return 4 * self.interval_s + 1


class Reported(Struct, frozen=True):
    """A running job as its worker last published it."""

    worker: str
    job: RunningJob
    age_s: float


encode_record = json.Encoder().encode
decode_record = json.Decoder(WorkerRecord).decode


def records(presence: Presence) -> list[tuple[WorkerRecord, float]]:
    """What workers published and how many seconds ago; records of other versions are skipped."""
    found: list[tuple[WorkerRecord, float]] = []
    for _, content, age_s in presence.records():
        try:
            found.append((decode_record(content), age_s))
        except MsgspecError:
            continue
    return found


def reported_run(presence: Presence, job_id: str, attempt: int) -> Reported | None:
    """What a worker with a recent heartbeat published about this run; None: no worker has, yet or any more."""
    for record, age_s in records(presence):
        for job in () if record.is_stale(age_s) else record.running:
            if job.job == job_id and job.attempt == attempt:
                return Reported(record.worker, job, age_s)
    return None


def ordered_instance(presence: Presence, worker_id: str) -> str:
    """The instance that runs as this worker now. Raises NotFound if none does, Refused if it takes no orders."""
    record, age_s = found_worker(presence, worker_id)
    check_takes_orders(record, age_s)
    return record.instance


def found_worker(presence: Presence, worker_id: str) -> tuple[WorkerRecord, float]:
    """A worker's record, and how many seconds ago it was published."""
    for record, age_s in records(presence):
        if record.worker == worker_id:
            return record, age_s
    raise NotFound(
        f"there is no worker {worker_id!r}: it has stopped, or never ran; leasemill workers lists those that run"
    )


def check_takes_orders(record: WorkerRecord, age_s: float) -> None:
    """Refuse a worker that would not obey."""
    if record.is_stale(age_s):
        raise NotFound(
            f"worker {record.worker!r} has sent no heartbeat for {age_s:.0f} s: it is gone or cut off, and would not "
            "read an order"
        )
    if not record.takes_orders:
        version = f"Leasemill {record.version}" if record.version else "an older Leasemill"
        raise Refused(
            f"worker {record.worker!r} runs {version}, which takes no orders: stop it "
            f"with SIGTERM (process {record.pid} on {record.host}), or upgrade it"
        )


def check_instance(presence: Presence, worker_id: str, instance: str) -> None:
    """Refuse an order that is not for the instance that runs as this worker now."""
    if ordered_instance(presence, worker_id) != instance:
        raise NotFound(f"worker {worker_id!r} runs in another process than {instance!r}: read its record again")
