"""What happens to a job that this worker's code cannot run: a kind it does not declare, arguments that do not fit.

In a deployment two versions of the code are at work, so such a job is given back, after longer and longer waits, for
the version that can run it (F8). It fails when no handler has begun it for the mismatch timeout, counted in the store's
time from the first worker that could not run it. What must never happen here: a job that fails because it met the older
of two versions, or a line in the log for each of a million jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from typing import Final

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND
from leasemill.operator.fingerprint import normalised
from leasemill.operator.history import MISMATCH, mismatches
from leasemill.operator.wording import instant, span
from leasemill.store.base import Store
from leasemill.worker.coroutines import new_task
from leasemill.worker.error_text import fitting
from leasemill.worker.metrics import Metrics
from leasemill.worker.pacing import mismatch_delay_us
from leasemill.worker.reporter import Reporter
from leasemill.worker.run import Run

log = logging.getLogger("leasemill.worker")

MISMATCH_TIMEOUT_S: Final = 3600.0
LINE_EVERY_S: Final = 60.0
"""How often a mismatch of one kind and one cause is logged."""
LINES_REMEMBERED: Final = 1_000
KINDS_COUNTED: Final = 100
WHY_LENGTH: Final = 500


class UnmatchedJobs:
    """Gives back the jobs that do not match, and fails those that have not for too long."""

    def __init__(self, store: Store, metrics: Metrics, reporter: Reporter, timeout_s: float) -> None:
        self.by_kind: dict[str, int] = {}
        """How many claims of each kind did not match; at most 100 kinds."""
        self._store = store
        self._metrics = metrics
        self._reporter = reporter
        self._timeout_us = int(timeout_s * SECOND)
        self._undecided: deque[tuple[Run, str]] = deque()
        self._deciding: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._lines: dict[tuple[str, str], tuple[float, int]] = {}
        """When a mismatch was logged and how often it was seen since, by kind and cause."""

    @property
    def undecided(self) -> int:
        """Jobs whose record is being read."""
        return len(self._undecided)

    def take(self, run: Run, why: str) -> None:
        """A job was claimed that no handler here can run, because of `why`."""
        lease, why = run.lease, fitting(why[:WHY_LENGTH])
        self._metrics.mismatched += 1
        if lease.job.kind in self.by_kind or len(self.by_kind) < KINDS_COUNTED:
            self.by_kind[lease.job.kind] = self.by_kind.get(lease.job.kind, 0) + 1
        self._log(run, why)
        if self._is_stopping or self._is_in_time(lease):
            self._give_back(run, why)
            return
        self._undecided.append((run, why))
        if self._deciding is None:
            self._deciding = new_task(self._decide())

    def decide_at_once(self) -> None:
        """The worker stops: what was not decided is given back; another worker decides."""
        self._is_stopping = True
        while self._undecided:
            self._give_back(*self._undecided.popleft())

    def _is_in_time(self, lease: c.Lease) -> bool:
        """Known without its record: a job cannot have been waiting for longer than it exists."""
        return self._timeout_us > 0 and (lease.attempt == 1 or lease.leased_at - lease.created_at < self._timeout_us)

    async def _decide(self) -> None:
        """One after the other: there is no hurry, and these reads must not crowd out the work."""
        while self._undecided:
            lease = self._undecided[0][0].lease
            since = await self._since(lease)
            if not self._undecided:
                break  # decided at once meanwhile
            run, why = self._undecided.popleft()
            if since is not None and lease.leased_at - since >= self._timeout_us:
                self._give_up(run, why, since)
            else:
                self._give_back(run, why)
        self._deciding = None

    async def _since(self, lease: c.Lease) -> int | None:
        """When a worker first could not run it; None: unknown now."""
        try:
            job = await self._store.ajob(lease.job.id)
        except LeasemillError:
            return None
        earlier = [] if job is None else mismatches(job)
        return lease.leased_at if not earlier else earlier[0].leased_at

    def _give_back(self, run: Run, why: str) -> None:
        lease = run.lease
        tries = lease.attempt - lease.retries - lease.expirations
        delay_us = mismatch_delay_us(tries, self._timeout_us / SECOND, self._store.entropy.jitter())
        note = f"{MISMATCH}{why}; it fails after {span(self._timeout_us)} without code that matches"
        self._reporter.send(run, c.ReleaseReport(lease.job.id, lease.token, delay_us, note))

    def _give_up(self, run: Run, why: str, since: int) -> None:
        lease = run.lease
        error = f"{MISMATCH}{why}\nno worker's code matched since {instant(since)} ({span(lease.leased_at - since)})"
        self._reporter.send(run, c.NackReport(lease.job.id, lease.token, error, is_permanent=True))

    def _log(self, run: Run, why: str) -> None:
        """Log it once for a kind and a cause, and then once a minute with how many there were."""
        now = time.monotonic()
        key = (run.lease.job.kind, normalised(why))
        logged_at, skipped = self._lines.get(key, (-math.inf, 0))
        if now < logged_at + LINE_EVERY_S:
            self._lines[key] = logged_at, skipped + 1
            return
        if len(self._lines) >= LINES_REMEMBERED:
            self._lines.clear()
        self._lines[key] = now, 0
        more = f" ({skipped:,} more like it since the last such line)" if skipped else ""
        log.warning(
            "this worker can't run the job (%s); released for another worker, FAILED in %s if none can%s",
            why,
            span(self._timeout_us),
            more,
            extra=run.log_fields,
        )
