"""Who is at work: each worker publishes a small record now and then. Soft state, safe to lose.

A worker's id is its own: a second worker that is given the id of a live one is refused. Two workers of one id would
replace each other's record, and nobody could say whose log line, lease or death it was. Leases need none of this: their
tokens differ. A worker that was killed leaves its record behind; the next one of its id waits until that is stale,
unless it can see that the process is gone.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import MsgspecError, Struct, json

from leasemill.errors import Refused
from leasemill.store.presence import Presence

if TYPE_CHECKING:  # `leasemill workers` reads records and needs none of what runs jobs
    from leasemill.worker.run import Run

log = logging.getLogger("leasemill.worker")

LOOK_S: Final = 0.25

FIRST_PUBLICATIONS: Final = 3

_live: Final[dict[str, WorkerPresence]] = {}
"""What runs in this process, by instance."""


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


def running_job(run: Run, now: float) -> RunningJob:
    lease = run.lease
    seconds = max(0.0, now - run.started_at) if run.started_at else 0.0
    progress = None if run.context is None else run.context.latest_progress
    if progress is None:
        return RunningJob(lease.job.id, lease.job.kind, lease.attempt, seconds)
    return RunningJob(
        lease.job.id, lease.job.kind, lease.attempt, seconds, progress.done, progress.total, progress.note
    )


encode_record = json.Encoder().encode
decode_record = json.Decoder(WorkerRecord).decode


class WorkerPresence:
    """One instance of a worker, whatever its id is."""

    def __init__(self, worker_id: str, presence: Presence, started_at: float) -> None:
        self.instance = secrets.token_hex(8)
        self._worker_id = worker_id
        self._presence = presence
        self._started_at = started_at
        self._wakes = threading.Event()
        self._publications = 0

    def begin(self) -> None:
        """This instance runs from now on. Raises Refused if another of its id does, in this process."""
        for other in list(_live.values()):
            if other._worker_id == self._worker_id and other._presence is self._presence:
                raise self._refusal(socket.gethostname(), os.getpid())
        _live[self.instance] = self

    def end(self) -> None:
        _live.pop(self.instance, None)

    def await_free(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until no live worker has the id. Raises Refused as soon as it is sure that one has."""
        first = self._other()
        if first is None:
            return
        log.warning(
            "a worker of this id was at work a moment ago (host %s, pid %d): waiting until it is surely gone",
            first.host,
            first.pid,
            extra={"worker": self._worker_id},
        )
        while (other := self._other()) is not None and not is_stopping():
            if other != first:  # it has published again: it lives
                raise self._refusal(other.host, other.pid)
            self._wakes.wait(LOOK_S)

    def check_first(self) -> None:
        """To be called before each publication: the first few times it looks whose record is replaced.

        Two that started at the same moment may both have found the id free, and then replace each other's record.
        """
        if self._publications < FIRST_PUBLICATIONS:
            self._publications += 1
            self.check()

    def check(self) -> None:
        """Raises Refused if the record under this id is that of an instance that started earlier."""
        other = self._other()
        if other is not None and (other.started_at, other.instance) < (self._started_at, self.instance):
            raise self._refusal(other.host, other.pid)

    def withdraw(self) -> None:
        """Remove the record, if it is this instance's."""
        record = self._record()
        if record is not None and record.instance == self.instance:
            self._presence.remove(self._worker_id)

    def _refusal(self, host: str, pid: int) -> Refused:
        return Refused(
            f"worker id {self._worker_id!r} is in use by a live worker (host {host}, pid {pid}): "
            "give each worker an id of its own, or none"
        )

    def _other(self) -> WorkerRecord | None:
        """The record of a worker that has this id and may be alive."""
        record = self._record()
        return None if record is None or record.instance == self.instance or _is_gone(record) else record

    def _record(self) -> WorkerRecord | None:
        """What was published under this id, if it is not stale."""
        for worker_id, content, age_s in self._presence.records():
            if worker_id == self._worker_id:
                try:
                    record = decode_record(content)
                except MsgspecError:
                    return None  # of another version: not ours to judge
                return None if record.is_stale(age_s) else record
        return None


def _is_gone(record: WorkerRecord) -> bool:
    """Its process was on this machine and has ended."""
    if record.host != socket.gethostname() or record.pid == os.getpid():
        return False
    try:
        os.kill(record.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
