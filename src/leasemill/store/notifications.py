"""How a store notifies the threads and event loops of its own process: of new work, of a job's end (O9), of the
cancellation of a running job (O10), and of leases that expired.

A store calls `Signal.notify` after every change, `Ends.observe` with every event it applies, and `Ends.notify` when it
learns of an end in another way. With nobody waiting that costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from leasemill.kernel.commands import Expiration
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.model import SECOND, JobState
from leasemill.kernel.transitions.executions import ended_jobs

LOGGER: Final = logging.getLogger("leasemill.store")
KEPT: Final = 1_000
"""The most expiries that are kept for the first listener."""

ExpiryListener: TypeAlias = Callable[[Sequence[Expiration]], None]


class Signal:
    """A counter that threads and event loops wait on: a change of it wakes all of them."""

    def __init__(self) -> None:
        self._count = 0
        self.reset()

    def reset(self) -> None:
        """Forget all waiters: a forked child has none of them."""
        self._changed = threading.Condition()
        self._callbacks: set[Callable[[], None]] = set()

    def notify(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, set()
        for callback in callbacks:
            callback()

    def watch(self) -> SignalWatch:
        return SignalWatch(self)


class SignalWatch:
    """A watch that remembers the signal's count; a wait returns at once if the count has changed since."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self._seen = signal._count

    def wait(self, timeout_s: float) -> bool:
        signal = self._signal
        with signal._changed:
            changed = signal._changed.wait_for(lambda: signal._count != self._seen, timeout_s)
            self._seen = signal._count
        return changed

    async def wait_async(self, timeout_s: float) -> bool:
        signal = self._signal
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits there
                loop.call_soon_threadsafe(woken.set)

        with signal._changed:
            if signal._count != self._seen:
                self._seen = signal._count
                return True
            signal._callbacks.add(wake)
        try:
            async with asyncio.timeout(timeout_s):  # wait_for may swallow a cancellation
                await woken.wait()
        except TimeoutError:
            return False
        finally:
            with signal._changed:
                signal._callbacks.discard(wake)
                self._seen = signal._count
        return True

    def close(self) -> None:
        """Do nothing: a watch holds nothing between waits."""


class Ends:
    """The waiters of this process, by job. `on_change` is called, outside of every lock, when one came or left."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self.reset()

    def reset(self) -> None:
        """Forget all waiters: a forked child has none of them."""
        self._lock = threading.Lock()
        self.waiters: dict[str, set[Signal]] = {}

    def __bool__(self) -> bool:
        return bool(self.waiters)

    def job_ids(self) -> set[str]:
        with self._lock:
            return set(self.waiters)

    def watch(self, job_id: str) -> EndWatch:
        """Return a watch that notices an end of this job from now on."""
        watch = EndWatch(self, job_id)
        with self._lock:
            self.waiters.setdefault(job_id, set()).add(watch.signal)
        self._on_change()
        return watch

    def observe(self, events: Iterable[AnyEvent]) -> None:
        if self.waiters:
            self.notify(ended_jobs(events))

    def notify(self, job_ids: Iterable[str]) -> None:
        """Wake the waiters for these jobs, which may have ended."""
        with self._lock:
            woken = [signal for job_id in job_ids for signal in self.waiters.get(job_id, ())]
        for signal in woken:
            signal.notify()

    def notify_all(self) -> None:
        """Wake all waiters: any job may have ended."""
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
    """The functions to call when a running job was cancelled."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self.reset()

    def reset(self) -> None:
        """Forget all functions, in a forked child or a store that is closed."""
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
    """A subscription to cancellations, which lasts until it is closed."""

    def __init__(self, cancellations: Cancellations, wake: Callable[[], None]) -> None:
        self._cancellations = cancellations
        self._wake = wake

    def close(self) -> None:
        self._cancellations.forget(self._wake)


def log_expiry(log: logging.Logger, one: Expiration, **fields: Any) -> None:
    is_dead = one.state is JobState.DEAD
    log.log(
        logging.ERROR if is_dead else logging.WARNING,
        "lease of worker %s on job %s expired %.1f s ago: the job is %s",
        one.worker,
        one.job_id,
        one.stuck_us / SECOND,
        "quarantined after too many expirations" if is_dead else one.state,
        extra={"job": one.job_id, "attempt": one.attempt, **fields},
    )


class Expiries:
    """The listeners of one store to leases that expired.

    The process that records an expiry logs and counts it, once, whichever of its commands did so. A worker's reaper and
    a server listen, to count. An expiry that is recorded before anybody listens, or where nobody ever does (a command,
    a script), is logged here, and kept for the first listener."""

    def __init__(self) -> None:
        self.listeners: tuple[ExpiryListener, ...] = ()
        self._uncounted: deque[Expiration] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def listen(self, listener: ExpiryListener) -> list[Expiration]:
        """Add a listener. Returns the expiries found while none was there: they were logged, and not yet counted."""
        with self._lock:
            self.listeners = (*self.listeners, listener)
            uncounted = [*self._uncounted]
            self._uncounted.clear()
        return uncounted

    def forget(self, listener: ExpiryListener) -> None:
        with self._lock:
            self.listeners = tuple(one for one in self.listeners if one != listener)

    def notify(self, expired: Sequence[Expiration]) -> None:
        """Notify the listeners of expiries that are durable, in the thread that recorded them."""
        if not expired:
            return
        with self._lock:
            listeners = self.listeners
            if not listeners:
                self._uncounted.extend(expired)
        for listener in listeners:
            listener(expired)
        if not listeners:
            for one in expired:
                log_expiry(LOGGER, one)
