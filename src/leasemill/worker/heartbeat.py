"""Keeps leases alive, in a thread of its own: a handler that blocks the event loop does not cost the worker its jobs.

It extends what runs. A job that only waits for a slot is not extended (it is given back soon), nor is one whose handler
has outrun its timeout because the event loop is blocked: somebody else must get it.

When the store reports that a running job was cancelled, all that runs is extended at once: the answer shows which of it
is lost (O10).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable

from leasemill.api.observer import Observer
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.store.backoff import backoff_s
from leasemill.store.base import Store
from leasemill.store.notifications import Subscription
from leasemill.worker.handler import Ended
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import NOBODY, Observers
from leasemill.worker.pacing import HURRY_EVERY_S, beat_at, retry_beat_s, worth_extending
from leasemill.worker.run import Phase, Run, Stop
from leasemill.worker.threads import start_background

log = logging.getLogger("leasemill.worker")


class Heartbeat:
    """Extends the leases of running jobs before they run out, and reports which are lost."""

    def __init__(
        self,
        worker_id: str,
        store: Store,
        metrics: Metrics,
        *,
        running: Callable[[], Iterable[Run]],
        on_lost: Callable[[Run, str | None], None],
        on_answered: Callable[[], None],
        on_end: Callable[[BaseException | None], None],
        interval_s: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        observers: Observers = NOBODY,
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._metrics = metrics
        self._running = running
        """A copy: it is called in this thread."""
        self._on_lost = on_lost
        """Called with the store's reason, or None if the lease could not be extended in time."""
        self._on_answered = on_answered
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._observers = observers
        self._lock = threading.Lock()
        self._extending: frozenset[str] = frozenset()
        self._failures = 0
        self._not_before = 0.0
        self._is_hurried = False
        self._hurried_at = -HURRY_EVERY_S
        self._subscription: Subscription | None = None
        self._changed = threading.Condition()
        self._is_stopping = False
        self.wakes_at = math.inf
        self._on_end = on_end

    def start(self) -> None:
        self._subscription = self._store.watch_cancellations(self.hurry)
        start_background("heartbeat", self._run, self._on_end)

    def stop(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        with self._changed:
            self._is_stopping = True
            self._changed.notify()

    def set_interval(self, interval_s: float | None) -> None:
        """The longest time between two extensions of a lease. From any thread."""
        with self._changed:
            self._interval_s = interval_s
            self.wakes_at = 0.0
            self._changed.notify()

    def expect(self, run: Run) -> None:
        """A job began to run: wake up in time for it."""
        due_at = beat_at(run.sent_at, run.lease_s, self._interval_s)
        if due_at < self.wakes_at:
            with self._changed:
                if due_at < self.wakes_at:
                    self.wakes_at = due_at
                    self._changed.notify()

    def hurry(self) -> None:
        """O10: a job that runs may have been cancelled. Ask at once, but not too often. From any thread."""
        with self._changed:
            self._is_hurried = True
            self.wakes_at = min(self.wakes_at, self._hurried_at + HURRY_EVERY_S)
            self._changed.notify()

    def admit(self, reports: list[Ended]) -> tuple[list[Ended], list[Ended]]:
        """Reports that may be sent, and those that must wait: an extension that came after them would be refused."""
        with self._lock:
            extending = self._extending
            if not extending:
                return reports, []
            return (
                [ended for ended in reports if ended[0].lease.token not in extending],
                [ended for ended in reports if ended[0].lease.token in extending],
            )

    def beat(self) -> float:
        """Extend what is due; returns when to look again."""
        now = self._monotonic()
        if now >= self._not_before:
            is_hurried = self._takes_hurry(now)
            due = self._take_due(now, is_hurried)
            if due:
                self._extend(due, is_hurried)
        return self._next_at(self._monotonic())

    def _takes_hurry(self, now: float) -> bool:
        if not self._is_hurried or now < self._hurried_at + HURRY_EVERY_S:
            return False
        self._is_hurried = False
        self._hurried_at = now
        return True

    def _take_due(self, now: float, is_hurried: bool) -> list[Run]:
        """Choose what is extended now, and announce it to `admit`.

        Both are one step under the lock. The event loop may end a run at any moment without it: a run that ended before
        is not chosen, and one that ends after has its report held back until the extension is answered. Two locks, or a
        choice outside of it, would let a report overtake an extension that was chosen but not announced.
        """
        with self._lock:
            running = [it for it in self._running() if _is_extended(it, now)]
            if is_hurried:
                due = running
            elif any(self._due_at(it) <= now for it in running):
                due = [it for it in running if worth_extending(now, it.sent_at, it.lease_s, self._interval_s)]
            else:
                return []
            self._extending = frozenset(it.lease.token for it in due)
            return due

    def _extend(self, due: list[Run], is_hurried: bool) -> None:
        refs = [c.LeaseRef(it.lease.job.id, it.lease.token) for it in due]
        # The new end counts from before the call: how long the answer takes must not make a lease look longer.
        # No lock is held during the call, which may take as long as a timeout of the store.
        sent_at = self._monotonic()
        try:
            outcomes = self._store.extend(refs)
        except Unavailable as error:
            self._failed(error, due)
            self._is_hurried |= is_hurried
            return
        finally:
            with self._lock:
                self._extending = frozenset()
            self._on_answered()
        took_s = self._monotonic() - sent_at
        is_repeat, self._failures = self._failures > 0, 0
        self._metrics.beats += 1
        extended = not_extended = 0
        for run, outcome in zip(due, outcomes, strict=True):
            if isinstance(outcome, c.Lost):
                self._on_lost(run, outcome.reason)
                not_extended += 1
            elif run.extended(sent_at, outcome.expires_at, is_repeat=is_repeat):
                run.beat_after = 0.0
                extended += 1
            else:
                self._not_extended(run)
                not_extended += 1
        self._metrics.extended += extended
        self._observers.notify(Observer.store_called, "extend", took_s)
        self._observers.notify(Observer.extended, extended, not_extended, took_s)

    def _not_extended(self, run: Run) -> None:
        """The store answered, and the lease ends when it did before (its row is locked, its clock stood still)."""
        self._metrics.not_extended += 1
        if run.beat_after == 0.0:
            log.warning("lease not extended by the store, will retry until it expires", extra=run.log_fields)
        run.beat_after = self._monotonic() + retry_beat_s(run.lease_s)

    def _failed(self, error: Unavailable, due: list[Run]) -> None:
        self._failures += 1
        self._metrics.beats_failed += 1
        self._metrics.unavailable += 1
        self._observers.notify(Observer.store_failed, "extend")
        wait_s = min(backoff_s(self._failures, self._store.entropy.jitter()), *(retry_beat_s(it.lease_s) for it in due))
        self._not_before = self._monotonic() + wait_s
        if self._failures == 1:
            fields = {"worker": self._worker_id}
            log.warning("heartbeat failed, will retry until the leases expire: %s", error, extra=fields)

    def _next_at(self, now: float) -> float:
        """When the next lease is due; one that has run out is declared lost here, whether or not the loop can."""
        next_at = max(self._hurried_at + HURRY_EVERY_S, self._not_before) if self._is_hurried else math.inf
        for run in self._running():
            if not _is_extended(run, now):
                continue
            lost_at = run.loss.held_until
            if now >= lost_at:
                self._on_lost(run, None)
                continue
            next_at = min(next_at, lost_at, max(self._due_at(run), self._not_before))
        return next_at

    def _due_at(self, run: Run) -> float:
        due_at = beat_at(run.sent_at, run.lease_s, self._interval_s)
        return max(due_at, run.beat_after)

    def _run(self) -> None:
        while self._wait():
            next_at = self.beat()
            with self._changed:
                self.wakes_at = min(self.wakes_at, next_at)

    def _wait(self) -> bool:
        """Sleep until something is due; False: stop."""
        with self._changed:
            while not self._is_stopping:
                left_s = self.wakes_at - self._monotonic()
                if left_s <= 0:
                    self.wakes_at = math.inf
                    return True
                self._changed.wait(None if left_s == math.inf else min(left_s, threading.TIMEOUT_MAX))
            return False


def _is_extended(run: Run, now: float) -> bool:
    if run.phase is not Phase.RUNNING:
        return False
    if run.loss.reason is not None and run.stop not in (Stop.TIMEOUT, Stop.SHUTDOWN):
        return False  # one that the worker stops is held until its handler has ended
    # The loop stops a handler at its timeout. If it could not, for a whole lease, it is blocked.
    return now < run.timeout_at + run.lease_s
