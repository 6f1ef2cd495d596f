"""One timer for everything that becomes due while jobs run: late starts, timeouts, leases that ran out, jobs that wait
too long for a slot. No job has a timer of its own."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import Protocol

from leasemill.worker.pacing import LATE_START_S, STUCK_AFTER_S, patience_s
from leasemill.worker.run import Phase, Run


class Slots(Protocol):
    active: dict[str, Run]
    queued: deque[Run]

    def tell_start(self, run: Run) -> None: ...
    def is_excused(self, run: Run) -> bool: ...
    def time_out(self, run: Run) -> None: ...
    def lose(self, run: Run, reason: str | None) -> None: ...
    def abandon(self, run: Run) -> None: ...
    def give_up(self, run: Run) -> None: ...
    def give_back_queued(self) -> None: ...


class Watchdog:
    """Looks after running jobs when something is due, and at no other time."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.wakes_at = math.inf

    def expect(self, at: float) -> None:
        """Something is due at this monotonic time."""
        if at < self.wakes_at:
            self.wakes_at = at
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(max(0.0, at - time.monotonic()), self._wake)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        self._timer = None
        self.wakes_at = math.inf
        next_at = self.look(time.monotonic())
        if next_at < math.inf:
            self.expect(next_at)

    def look(self, now: float) -> float:
        """Do what is due; answers when something is due next."""
        next_at = math.inf
        for run in list(self._slots.active.values()):
            if run.phase is Phase.RUNNING:
                next_at = min(next_at, self._look_at(run, now))
            elif run.left_at is not None and not run.is_stuck:
                next_at = min(next_at, self._look_at_left(run, run.left_at + STUCK_AFTER_S, now))
        if self._slots.queued:
            first = self._slots.queued[0]
            give_back_at = first.claimed_at + patience_s(first.lease_s)
            if now >= give_back_at:
                self._slots.give_back_queued()
            else:
                next_at = min(next_at, give_back_at)
        return next_at

    def _look_at_left(self, run: Run, stuck_at: float, now: float) -> float:
        if now < stuck_at:
            return stuck_at
        self._slots.give_up(run)
        return math.inf

    def _look_at(self, run: Run, now: float) -> float:
        slots = self._slots
        if now >= run.loss.held_until:
            slots.lose(run, None)
            return math.inf
        if run.stop is not None:
            if run.abandon_at is not None and now >= run.abandon_at:
                slots.abandon(run)
                return math.inf
            return min(run.abandon_at or math.inf, run.loss.held_until)
        if now >= run.timeout_at and not slots.is_excused(run):
            slots.time_out(run)
            return math.inf
        next_at = min(run.timeout_at, run.loss.held_until)
        if not run.is_start_told:
            start_at = run.started_at + LATE_START_S
            if now >= start_at:
                slots.tell_start(run)
            else:
                next_at = min(next_at, start_at)
        return next_at
