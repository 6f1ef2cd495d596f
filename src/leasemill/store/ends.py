"""Who in this process waits for what: a job's end (O9), or the cancellation of a running job (O10).

A store calls `observe` with every event it applies, and `notify` when it learns of an end in another way. With nobody
waiting that costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from leasemill.kernel.events import AnyEvent
from leasemill.kernel.transitions.executions import ended_jobs
from leasemill.store.signal import Signal, SignalWatch


class Ends:
    """The waiters of this process, by job. `on_change` is called when one came or left, outside of every lock."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self.reset()

    def reset(self) -> None:
        """Forget every waiter: for a forked child, which has none of them."""
        self._lock = threading.Lock()
        self.waiters: dict[str, set[Signal]] = {}

    def __bool__(self) -> bool:
        return bool(self.waiters)

    def job_ids(self) -> set[str]:
        with self._lock:
            return set(self.waiters)

    def watch(self, job_id: str) -> EndWatch:
        """From now on an end of this job is noticed."""
        watch = EndWatch(self, job_id)
        with self._lock:
            self.waiters.setdefault(job_id, set()).add(watch.signal)
        self._on_change()
        return watch

    def observe(self, events: Iterable[AnyEvent]) -> None:
        if self.waiters:
            self.notify(ended_jobs(events))

    def notify(self, job_ids: Iterable[str]) -> None:
        """These jobs may have ended."""
        with self._lock:
            woken = [signal for job_id in job_ids for signal in self.waiters.get(job_id, ())]
        for signal in woken:
            signal.notify()

    def notify_all(self) -> None:
        """Any job may have ended."""
        self.notify(self.job_ids())

    def leave(self, watch: EndWatch) -> None:
        with self._lock:
            left = self.waiters.get(watch.job_id)
            if left is None or watch.signal not in left:
                return
            left.discard(watch.signal)
            if not left:
                del self.waiters[watch.job_id]
        self._on_change()


class EndWatch(SignalWatch):
    """A store's Watch for the end of one job."""

    def __init__(self, ends: Ends, job_id: str) -> None:
        self.job_id = job_id
        self.signal = Signal()
        self._ends = ends
        super().__init__(self.signal)

    def close(self) -> None:
        self._ends.leave(self)


class Cancellations:
    """Whom to call when a running job was cancelled."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self.reset()

    def reset(self) -> None:
        """Forget all of them: for a forked child, or a store that is closed."""
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._wakers)

    def call(self, wake: Callable[[], None]) -> Subscription:
        with self._lock:
            self._wakers = [*self._wakers, wake]
        self._on_change()
        return Subscription(self, wake)

    def forget(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._wakers = [one for one in self._wakers if one is not wake]
        self._on_change()

    def notify(self) -> None:
        for wake in self._wakers:
            wake()


class Subscription:
    """Lasts until it is closed."""

    def __init__(self, cancellations: Cancellations, wake: Callable[[], None]) -> None:
        self._cancellations = cancellations
        self._wake = wake

    def close(self) -> None:
        self._cancellations.forget(self._wake)
