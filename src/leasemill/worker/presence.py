"""A worker's presence: it publishes a record now and then, and its id is its own.

A second worker that is given the id of a live one is refused. Two workers of one id would replace each other's record,
and nobody could say whose log line, lease or death it was. Leases need none of this: their tokens differ. A worker that
was killed leaves its record behind; the next one of its id waits until that is stale, unless it can see that the
process is gone.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import structs

from leasemill import __version__
from leasemill.errors import Refused
from leasemill.kernel.model import WorkerOrder
from leasemill.store.presence import Presence
from leasemill.store.worker_records import RunningJob, WorkerRecord, encode_record, records
from leasemill.worker.identity import has_ended, own
from leasemill.worker.metrics import Metrics
from leasemill.worker.run import Phase, Run
from leasemill.worker.slots import Slots

log = logging.getLogger("leasemill.worker")

PRESENCE_S: Final = 2.0
LOOK_S: Final = 0.25
FIRST_PUBLICATIONS: Final = 3
INSTANCE_BYTES: Final = 6  # 8 of the 20 characters of a token

_live: Final[dict[str, WorkerPresence]] = {}
"""What runs in this process, by instance."""


class WorkerPresence:
    """One instance of a worker, whatever its id is."""

    def __init__(self, worker_id: str, presence: Presence, started_at: float, *, is_exporting: bool = False) -> None:
        self.instance = new_instance()
        self._worker_id = worker_id
        self._presence = presence
        self._started_at = started_at
        self._publications = 0
        self.supervisor, self.processes = "", 1
        self._is_exporting = is_exporting
        self.on_first: Callable[[], None] | None = None
        """Called once, when the first record is published."""
        self.on_order: Callable[[WorkerOrder], None] = lambda _order: None
        """Called with each order to this instance, in the thread that publishes its record (O13)."""
        self._order: WorkerOrder | None = None

    def join(self, supervisor: str, processes: int) -> None:
        """This worker is one process of several that are one worker to whoever started them."""
        self.supervisor, self.processes = supervisor, processes

    def begin(self) -> None:
        """This instance runs from now on. Raises Refused if another of its id does, in this process."""
        for other in list(_live.values()):
            if other._worker_id == self._worker_id and other._presence is self._presence:
                raise self._refusal(socket.gethostname(), os.getpid())
        _live[self.instance] = self

    def end(self) -> None:
        _live.pop(self.instance, None)

    def publish(
        self,
        slots: Slots,
        metrics: Metrics,
        *,
        queues: dict[str, int],
        schedules: Iterable[str],
        mismatched: Mapping[str, int],
        is_stopping: bool,
        clock_ahead_s: float,
    ) -> None:
        self.check_first()
        now, active = time.monotonic(), slots.running()
        record = WorkerRecord(
            worker=self._worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            published_at=time.time(),
            interval_s=PRESENCE_S,
            queues=queues,
            concurrency=slots.size,
            is_stopping=is_stopping,
            running=[_running_job(it, now) for it in active if it.phase is Phase.RUNNING],
            counters=dataclasses.asdict(metrics),
            mismatched=dict(mismatched),
            instance=self.instance,
            process=own(),
            schedules=sorted(schedules),
            stuck=[_running_job(it, now) for it in active if it.left_at is not None],
            supervisor=self.supervisor,
            processes=self.processes,
            version=__version__,
            is_exporting=self._is_exporting,
            takes_orders=True,
            order=self._order,
            clock_ahead_s=clock_ahead_s,
        )
        order = self._presence.publish(self._worker_id, encode_record(record))
        if self.on_first is not None:
            self.on_first()
            self.on_first = None
        if order is not None and order != self._order:
            self._order = order
            self.on_order(order)
            self._presence.publish(self._worker_id, encode_record(structs.replace(record, order=order)))

    def withdraw(self) -> None:
        """Remove the record, if it is this instance's."""
        self._presence.remove(self._worker_id, self.instance)

    def await_free(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until no live worker has the id. Raises Refused as soon as it is sure that one has."""
        first = self._other()
        if first is None:
            return
        log.warning(
            "worker id was in use moments ago (host %s, pid %d): waiting until that worker is gone",
            first.host,
            first.pid,
            extra={"worker": self._worker_id},
        )
        while (other := self._other()) is not None and not is_stopping():
            if other != first:  # it has published again: it lives
                raise self._refusal(other.host, other.pid)
            time.sleep(LOOK_S)

    def check_first(self) -> None:
        """Before each publication: the first few times, look whose record is replaced.

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

    def _refusal(self, host: str, pid: int) -> Refused:
        return Refused(
            f"worker id {self._worker_id!r} is in use by a live worker (host {host}, pid {pid}): "
            "give each worker an id of its own, or none"
        )

    def _other(self) -> WorkerRecord | None:
        """The record of a worker that has this id and may be alive."""
        record = self._record()
        return None if record is None or record.instance == self.instance or has_ended(record.process) else record

    def _record(self) -> WorkerRecord | None:
        """What was published under this id, if it is not stale."""
        for record, age_s in records(self._presence):
            if record.worker == self._worker_id and not record.is_stale(age_s):
                return record
        return None


def _running_job(run: Run, now: float) -> RunningJob:
    seconds = max(0.0, now - run.started_at) if run.started_at else 0.0
    pid = None if run.process is None else run.process.pid
    job = RunningJob(run.lease.job.id, run.lease.job.kind, run.lease.attempt, seconds, pid=pid)
    progress = None if run.context is None else run.context.latest_progress
    if progress is None:
        return job
    return structs.replace(job, done=progress.done, total=progress.total, note=progress.note)


def new_instance() -> str:
    return secrets.token_urlsafe(INSTANCE_BYTES)
