"""The watermarks of `ready`: for each queue and rank a time before which there is no job, committed or not.

A watermark moves in two steps. First the time it may move to is published (`next_at`). Whoever begins to write after
that writes a job that is due later, as new jobs are, or sees the time and takes it back (`lower_watermarks`). When
every transaction that was writing at that moment has ended, its jobs are visible, and the watermark moves to the
published time or to the first job before it. Any process may take the second step. What must never happen here: a
watermark that passes a job.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from leasemill.store.postgres.known import Known
from leasemill.store.postgres.positions import Key
from leasemill.store.postgres.steps import Steps, rows

LOGGER: Final = logging.getLogger("leasemill.postgres")

WORN: Final = 1_000
"""So many jobs this process claims from a queue and rank before it moves their watermark."""
MOVE_EVERY_S: Final = 1.0
SETTLED_S: Final = 3.0
"""So long after the last claim all that was claimed is behind where a watermark may move to: two seconds ago."""
CHECK_EVERY_S: Final = 60.0
CHECK_AGAIN_S: Final = 5.0
"""So long after the clock was set back jobs that were being enqueued meanwhile are committed: checked again, and no
sooner."""
LEASES_S: Final = 300.0
"""So long after its last claim a process moves the watermark of leases."""


class Watermarks:
    """Moves them, on behalf of one store. Each method is the steps of one transaction."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self.after_fork()
        self._published: dict[Key, int] = {}
        self._writers: set[str] = set()
        """Transactions that were writing when the above was published."""
        self._moved_at_s = -MOVE_EVERY_S
        self._checked_at_s = -CHECK_EVERY_S
        self._set_back_at_s = -CHECK_AGAIN_S

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    @property
    def are_due(self) -> bool:
        if time.monotonic() - self._moved_at_s < MOVE_EVERY_S:
            return False
        return bool(self._published or self._known.positions.worn(WORN))

    @property
    def must_be_checked(self) -> bool:
        """True if a claim saw that the clock was set back: a new job may be due before a watermark."""
        if not self._known.positions.was_set_back or self._known.clock is not None:
            return False
        return time.monotonic() - self._set_back_at_s >= CHECK_AGAIN_S

    def move(self) -> Steps[None]:
        """Forward, where enough was claimed and nobody who was writing before is still at it."""
        if not self._lock.acquire(blocking=False):
            return  # another thread is at it
        try:
            # Between the two steps every transaction that was writing when the time was published must have ended. One
            # that is idle in a transaction keeps the watermark where it is: claims then walk more dead rows, and no job
            # is missed. A process that dies here leaves `next_at` behind, and another process takes the second step.
            self._moved_at_s = time.monotonic()
            if self._writers and (writers := self._writers & (yield from _writing())):
                self._writers = writers
                return
            yield from self._move()
        finally:
            self._lock.release()

    def _move(self) -> Steps[None]:
        positions = self._known.positions
        worn = positions.worn(WORN)
        keys = sorted({*worn, *self._published})
        given = {
            "queues": [queue for queue, _ in keys],
            "ranks": [rank for _, rank in keys],
            "proven_ats": [self._published.get(key) for key in keys],
            "worn": [int(key in worn) for key in keys],
        }
        self._published, self._writers = {}, set()
        if time.monotonic() - positions.claimed_at_s >= SETTLED_S:
            positions.forget_claimed(worn)
        moved = yield from rows("move_watermarks", given)
        published = {(queue, rank): next_at for queue, rank, next_at in moved if next_at is not None}
        if published:
            self._writers = yield from _writing()
        self._published = published

    def keep(self) -> Steps[None]:
        """The reaper's part: moves also what others published, and checks now and then that none has passed a job."""
        yield from self.move()
        if time.monotonic() - self._known.positions.claimed_at_s < LEASES_S:
            yield from rows("move_lease_watermark", {})
        if self.must_be_checked or time.monotonic() - self._checked_at_s >= CHECK_EVERY_S:
            yield from self.check()

    def check(self) -> Steps[None]:
        """None has, but for a clock that was set back, or a worker of an older version."""
        self._checked_at_s = at_s = time.monotonic()
        if self.must_be_checked:
            self._known.positions.was_set_back = False
            self._set_back_at_s = at_s
        if at_s - self._set_back_at_s < CHECK_AGAIN_S:  # also when this one is retried after a conflict
            self._checked_at_s -= CHECK_EVERY_S - CHECK_AGAIN_S
        for queue, rank, low_at in (yield from rows("check_watermarks", {})):
            LOGGER.warning("the watermark of queue %s, rank %d was lowered to %d", queue, rank, low_at)


def _writing() -> Steps[set[str]]:
    """Transactions that are writing to `ready`."""
    return {transaction for (transaction,) in (yield from rows("ready_writers", {}))}
