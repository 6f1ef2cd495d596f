"""What a worker does now and then, in one thread beside the event loop: the reaper, its presence, the queues' policies.

A store that cannot be reached is asked again at the next round; nothing here is lost by waiting.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from leasemill.api.observer import Observer
from leasemill.errors import Unavailable
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import NOBODY, Observers
from leasemill.worker.threads import start_background

log = logging.getLogger("leasemill.worker")


@dataclass(slots=True)
class Chore:
    """Something done every `interval_s()` seconds."""

    name: str
    interval_s: Callable[[], float]
    run: Callable[[], None]
    done_at: float | None = None
    spread: float = 1.0
    """The part of the interval that is waited for this time."""
    is_postponed: bool = False
    """It could not be done the last time, which has been logged."""

    @property
    def due_at(self) -> float:
        """By the interval as it is now: it may have changed since it was last done."""
        return -math.inf if self.done_at is None else self.done_at + self.interval_s() * self.spread


class Housekeeping:
    """Runs chores in turn, each at its own interval, spread a little so that workers do not act in step."""

    def __init__(
        self,
        worker_id: str,
        chores: list[Chore],
        metrics: Metrics,
        *,
        jitter: Callable[[], float],
        on_end: Callable[[BaseException | None], None],
        at_end: Chore | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        observers: Observers = NOBODY,
    ) -> None:
        self._worker_id = worker_id
        self._chores = chores
        self._metrics = metrics
        self._at_end = at_end
        self._jitter = jitter
        self._monotonic = monotonic
        self._observers = observers
        self._stopped = threading.Event()
        self._on_end = on_end

    def start(self) -> None:
        start_background("housekeeping", self._run, self._on_end)

    def stop(self) -> None:
        """End after the chore at hand and the one for the end, both in the thread."""
        self._stopped.set()

    def round(self) -> float:
        """Do what is due; returns in how many seconds something is due next."""
        for chore in self._chores:
            now = self._monotonic()
            if now >= chore.due_at:
                chore.done_at, chore.spread = now, 0.9 + 0.1 * self._jitter()
                self._do(chore)
        return max(0.0, min(chore.due_at for chore in self._chores) - self._monotonic())

    def _do(self, chore: Chore) -> None:
        try:
            chore.run()
        except Unavailable as error:
            self._metrics.unavailable += 1
            self._observers.notify(Observer.store_failed, chore.name)
            self._postpone(chore, f"the store is unavailable: {error}")
        except OSError as error:
            self._postpone(chore, str(error))
        else:
            chore.is_postponed = False

    def _postpone(self, chore: Chore, why: str) -> None:
        """Logged once, however long the store is away: it is tried again several times in a minute."""
        if not chore.is_postponed:
            chore.is_postponed = True
            log.warning("%s postponed, will retry: %s", chore.name, why, extra={"worker": self._worker_id})

    def _run(self) -> None:
        wait_s = self.round()
        while not self._stopped.wait(wait_s):
            wait_s = self.round()
        if self._at_end is not None:
            self._do(self._at_end)
