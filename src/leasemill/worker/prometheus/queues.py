"""Reads how many jobs the queues have, how late schedules are and how many groups wait, in one worker of all.

Numbers about the store must not be summed N-fold.

Elected is the worker that started first, of those that export metrics, are not stopping and have a recent heartbeat.
Each of them decides that for itself from the same records (`store.presence`), so there is nothing to lock and nobody to
ask. It holds until its own record, as it was seen in the store, could be taken for that of a dead worker: a worker that
is cut off from the store, or stood still, exports nothing by the time another takes over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from leasemill.errors import Refused, Unavailable
from leasemill.kernel.model import SECOND
from leasemill.operator.listing import all_queues, late_schedules, open_groups
from leasemill.store.base import Store
from leasemill.store.worker_records import WorkerRecord, records
from leasemill.worker.prometheus.catalogue import (
    GROUPS_OPEN,
    QUEUE_JOBS,
    QUEUE_OLDEST,
    QUEUE_PAUSED,
    QUEUES_ELECTED,
    SCHEDULE_LATE,
)
from leasemill.worker.prometheus.samples import Samples
from leasemill.worker.threads import start_background

log = logging.getLogger("leasemill.worker")

ELECTED_LOOKS_S: Final = 2.0
OTHERS_LOOK_S: Final = 10.0
"""Every look reads the records of all workers: those that have nothing to export take their time."""
UNKNOWN_LOOKS_S: Final = 0.5
"""A worker's own record is published soon after its start."""
READ_S: Final = 5.0
READ_SHARE: Final = 0.1
"""At most this share of the time is spent on counting: if it took 2 s, it is repeated after 20 s."""


class QueueReader:
    """Counts in a separate thread: counting millions of jobs must delay neither leases nor the reaper."""

    def __init__(self, worker_id: str, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._worker_id = worker_id
        self._store = store
        self._monotonic = monotonic
        self._stopped = threading.Event()
        self._elected_until = -1.0
        self._read_at = -1.0
        self._found = Samples()
        self._is_failing = False

    def start(self) -> None:
        start_background("queues", self._run, self._ended)

    def stop(self) -> None:
        self._stopped.set()
        self._elected_until = -1.0

    def samples(self) -> tuple[Samples, float]:
        """Return the queues, and for how many seconds they may be exported; none if another worker is elected."""
        left_s = self._elected_until - self._monotonic()
        is_elected = left_s > 0
        found = self._found.copy() if is_elected else Samples()
        found.add(QUEUES_ELECTED, by=int(is_elected))
        return found, max(0.0, left_s)

    def round(self) -> float:
        """See who is elected, and count if it is this worker. Returns the seconds until the next look."""
        try:
            return self._look()
        except (Unavailable, OSError) as error:
            if not self._is_failing:
                log.warning("queues not counted, will retry: %s", error, extra={"worker": self._worker_id})
            self._is_failing = True
            return ELECTED_LOOKS_S

    def _look(self) -> float:
        looked_at = self._monotonic()
        present = records(self._store.presence)
        own = next((one for one in present if one[0].worker == self._worker_id), None)
        if own is None:
            self._elected_until = -1.0
            return UNKNOWN_LOOKS_S
        if elected(present) != self._worker_id:
            self._elected_until = -1.0
            self._is_failing = False
            return OTHERS_LOOK_S
        if looked_at >= self._read_at:
            self._found = counted(self._store)
            took_s = self._monotonic() - looked_at
            self._read_at = self._monotonic() + max(READ_S - ELECTED_LOOKS_S / 2, took_s / READ_SHARE)
        self._is_failing = False
        if not self._stopped.is_set():
            record, age_s = own
            self._elected_until = looked_at + record.stale_after_s - age_s
        return ELECTED_LOOKS_S

    def _run(self) -> None:
        wait_s = self.round()
        while not self._stopped.wait(wait_s):
            wait_s = self.round()

    def _ended(self, error: BaseException | None) -> None:
        """Log the error that ended the thread. The worker itself notices that its store is damaged."""
        self.stop()
        if error is not None:
            log.error("queues are not counted any more: %s", error, extra={"worker": self._worker_id})


def elected(present: list[tuple[WorkerRecord, float]]) -> str | None:
    """Return the worker that exports the queues, or None if no worker can."""
    able = [
        record
        for record, age_s in present
        if record.is_exporting and not record.is_stopping and not record.is_stale(age_s)
    ]
    first = min(able, key=lambda record: (record.started_at, record.worker), default=None)
    return None if first is None else first.worker


def counted(store: Store) -> Samples:
    found, now = Samples(), store.time()
    for queue in all_queues(store):
        for state, count in queue.counts.items():
            found.add(QUEUE_JOBS, (queue.name, state.value), count)
        due_at = now if queue.oldest_available_at is None else queue.oldest_available_at
        found.add(QUEUE_OLDEST, (queue.name,), max(0, now - due_at) / SECOND)
        found.add(QUEUE_PAUSED, (queue.name,), int(queue.is_paused))
    found.add(SCHEDULE_LATE, by=max(late_schedules(store).values(), default=0) / SECOND)
    with suppress(Refused):  # behind a server, to a key that may work and not read
        found.add(GROUPS_OPEN, by=open_groups(store).count)
    return found
