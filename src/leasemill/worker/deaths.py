"""Ends the leases of workers that are proved dead, so that their jobs run again at once.

Two prove a death: a supervisor, whose child it was, and every worker, of processes of the same machine, boot and
process namespace. What must never happen: a worker declared dead that may still run, because it is stopped, slow or cut
off. Its leases end by time.

A worker's tokens begin with its instance, so that a successor of the same id keeps its own leases.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState
from leasemill.operator.wording import counted, listed
from leasemill.store.backoff import backoff_s
from leasemill.store.base import Store
from leasemill.store.worker_records import WorkerRecord, records
from leasemill.worker.identity import Gone, descriptor_of
from leasemill.worker.metrics import Metrics
from leasemill.worker.threads import start_background

log = logging.getLogger("leasemill.worker")

LOOK_S: Final = 1.0
RECORDS_A_SECOND: Final = 20
"""Where there are many workers, records are read less often: the descriptors of known ones notice a death anyway."""
AGAIN_S: Final = 1.0
"""A claim that was on its way to a server when the worker died is granted a moment later: look for it again."""
BATCH: Final = 500
NO_LEASES: Final = "it held no lease any more"


class Ended(NamedTuple):
    worker: str
    instance: str
    cause: str
    then: Callable[[], None] | None = None


def what_became_of(died: Sequence[c.Died | c.Released]) -> str:
    """The jobs of a worker that has ended, for a line in the log."""
    count = Counter(one.state for one in died)
    dead = [one.job_id for one in died if one.state is JobState.DEAD]
    parts = [f"{counted(count[JobState.READY], 'job')} can run again"] if count[JobState.READY] else []
    if count[JobState.SUCCEEDED]:
        parts.append(f"{counted(count[JobState.SUCCEEDED], 'job')} had committed and succeeded")
    if dead:
        parts.append(f"{counted(len(dead), 'job')} quarantined: {listed(dead)} (see `leasemill jobs explain`)")
    return ", ".join(parts) or NO_LEASES


class Deaths:
    """Watches the processes of other workers, in a thread of its own."""

    def __init__(
        self,
        worker_id: str,
        instance: str,
        store: Store,
        metrics: Metrics,
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self._worker_id = worker_id
        self._instance = instance
        self._store = store
        self._metrics = metrics
        self._on_end = on_end
        self.on_quarantined: Callable[[str], None] | None = None
        """Called with the id of each job that is DEAD now, in this one's thread."""
        self._ended: deque[Ended] = deque()
        self._again: deque[tuple[float, Ended, bool]] = deque()
        self._done: set[str] = set()
        """Instances whose leases were ended here."""
        self._watched: dict[str, tuple[int, WorkerRecord]] = {}
        """The descriptors of processes, by instance."""
        self._look_at = 0.0
        self._not_before = 0.0
        self._failures = 0
        self._lock = threading.Lock()
        self._rounding = threading.Lock()
        """A worker that is stopped while it starts lets go of its first round, which goes on beside the thread."""
        self._is_stopping = False
        self._wake_read, self._wake_write = -1, -1

    def start(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        start_background("deaths", self._run, self._on_end)

    def stop(self) -> None:
        with self._lock:
            self._is_stopping = True
            self._wake()

    def ended(self, worker_id: str, instance: str, cause: str, then: Callable[[], None] | None = None) -> None:
        """This worker is proved dead: end its leases, as soon as the store answers. From any thread.

        `then` is called when that is on record; never, if this worker ends before.
        """
        with self._lock:
            self._ended.append(Ended(worker_id, instance, cause, then))
            self._wake()

    def look(self) -> None:
        """Find processes of other workers, and which of them are gone. A successor calls it before its record replaces
        that of a predecessor of the same id."""
        found = [record for record, _ in records(self._store.presence)]
        self._look_at = time.monotonic() + max(LOOK_S, len(found) / RECORDS_A_SECOND)
        present = {record.instance for record in found}
        for record in found:
            if record.process is None or record.instance in self._watched or record.instance in self._done:
                continue
            if record.instance == self._instance:
                continue
            try:
                descriptor = descriptor_of(record.process)
            except Gone:
                self._prove(record)
            else:
                if descriptor is not None:
                    self._watched[record.instance] = descriptor, record
        for instance in self._watched.keys() - present:
            if not self._holds_leases(self._watched[instance][1]):
                os.close(self._watched.pop(instance)[0])  # it has withdrawn
        self._done &= present

    def _holds_leases(self, record: WorkerRecord) -> bool:
        """Then it stands still: its record was removed when it became stale, and it may still die."""
        held = self._store.leases(worker=record.worker, limit=BATCH)
        return any(one.token.startswith(record.instance) for one in held)

    def _prove(self, record: WorkerRecord) -> None:
        how = f"its process {record.pid} on host {record.host} is gone, seen by worker {self._worker_id}"
        self._ended.append(Ended(record.worker, record.instance, how))

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self.round()
                self._wait()
        finally:
            with self._lock:
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._wake_read, self._wake_write = -1, -1
            self.close()

    def close(self) -> None:
        """Where it was never started; while its thread runs, that does it."""
        if self._wake_read < 0:
            while self._watched:
                os.close(self._watched.popitem()[1][0])

    def round(self) -> None:
        """Look if it is time to, and end what is proved. A store that is unavailable is asked again."""
        with self._rounding:
            if time.monotonic() >= self._not_before:
                self._round()

    def _round(self) -> None:
        try:
            if time.monotonic() >= self._look_at:
                self.look()
            while self._ended:
                ended = self._ended[0]
                if ended.instance not in self._done:
                    was_stopping = self._was_stopping(ended)
                    self._end(ended, was_stopping)
                    self._again.append((time.monotonic() + AGAIN_S, ended, was_stopping))
                then = self._ended.popleft().then
                if then is not None:
                    then()
            while self._again and time.monotonic() >= self._again[0][0]:
                self._end(*self._again[0][1:])
                self._again.popleft()
        except (Unavailable, OSError) as error:
            self._failures += 1
            self._not_before = time.monotonic() + backoff_s(self._failures, self._store.entropy.jitter())
            if self._failures == 1:
                log.warning("deaths of workers not recorded, will retry: %s", error, extra={"worker": self._worker_id})
        else:
            self._failures = 0

    def _was_stopping(self, ended: Ended) -> bool:
        """X8: it ended by a shutdown that did not wait for a handler. A deployment must not count against the job."""
        found = (record for record, _ in records(self._store.presence))
        return any(record.is_stopping for record in found if record.instance == ended.instance)

    def _end(self, ended: Ended, was_stopping: bool) -> None:
        cause = f"worker {ended.worker} ended: {ended.cause}"
        all_died: list[c.Died | c.Released] = []
        after = 0
        while page := self._store.leases(worker=ended.worker, limit=BATCH, after=after):
            after = page[-1].fence
            held = [one for one in page if one.token.startswith(ended.instance)]
            outcomes: Sequence[c.DeathOutcome | c.ReleaseOutcome] = ()
            if held and was_stopping:
                outcomes = self._store.release([c.ReleaseReport(one.job_id, one.token) for one in held])
            elif held:
                outcomes = self._store.death([c.DeathReport(one.job_id, one.token, cause) for one in held])
            died = [one for one in outcomes if isinstance(one, c.Died | c.Released) and not one.is_repeat]
            all_died += died
            for one in died:
                if one.state is JobState.DEAD and self.on_quarantined is not None:
                    self.on_quarantined(one.job_id)
        self._metrics.deaths += len(all_died)
        self._done.add(ended.instance)
        is_first = self._store.presence.remove(ended.worker, ended.instance)
        self._metrics.dead_workers += is_first
        if is_first or all_died:
            fields = {"worker": self._worker_id, "dead_worker": ended.worker}
            level = logging.WARNING if was_stopping else logging.ERROR
            log.log(level, "%s; %s", cause, what_became_of(all_died), extra=fields)

    # Waiting -----------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Until a process ends, a look is due, or a proof arrives."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        by_descriptor = {descriptor: instance for instance, (descriptor, _) in self._watched.items()}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        until = min(self._look_at, *(at for at, *_ in self._again), math.inf)
        until = max(until, self._not_before)
        for descriptor, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000):
            if descriptor == self._wake_read:
                os.read(self._wake_read, 4096)
            else:
                ended_descriptor, record = self._watched.pop(by_descriptor[descriptor])
                os.close(ended_descriptor)
                self._prove(record)

    def _wake(self) -> None:
        if self._wake_write >= 0:
            with suppress(BlockingIOError):  # it is awake already
                os.write(self._wake_write, b"\0")
