"""One timer for everything that becomes due while jobs run: late starts, timeouts, leases that ran out, jobs that wait
too long for a slot. No job has a timer of its own."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import Protocol

from leasemill.worker.execution import Execution, Phase
from leasemill.worker.pacing import LATE_START_S, STUCK_AFTER_S, patience_s


class Slots(Protocol):
    active: dict[str, Execution]
    queued: deque[Execution]

    def tell_start(self, execution: Execution) -> None: ...
    def is_excused(self, execution: Execution) -> bool: ...
    def time_out(self, execution: Execution) -> None: ...
    def lose(self, execution: Execution, reason: str | None) -> None: ...
    def abandon(self, execution: Execution) -> None: ...
    def give_up(self, execution: Execution) -> None: ...
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
        for execution in list(self._slots.active.values()):
            if execution.phase is Phase.RUNNING:
                next_at = min(next_at, self._look_at(execution, now))
            elif execution.left_at is not None and not execution.is_stuck:
                next_at = min(next_at, self._look_at_left(execution, execution.left_at + STUCK_AFTER_S, now))
        if self._slots.queued:
            first = self._slots.queued[0]
            give_back_at = first.claimed_at + patience_s(first.lease_s)
            if now >= give_back_at:
                self._slots.give_back_queued()
            else:
                next_at = min(next_at, give_back_at)
        return next_at

    def _look_at_left(self, execution: Execution, stuck_at: float, now: float) -> float:
        if now < stuck_at:
            return stuck_at
        self._slots.give_up(execution)
        return math.inf

    def _look_at(self, execution: Execution, now: float) -> float:
        slots = self._slots
        if now >= execution.loss.held_until:
            slots.lose(execution, None)
            return math.inf
        if execution.stop is not None:
            if execution.abandon_at is not None and now >= execution.abandon_at:
                slots.abandon(execution)
                return math.inf
            return min(execution.abandon_at or math.inf, execution.loss.held_until)
        if now >= execution.timeout_at and not slots.is_excused(execution):
            slots.time_out(execution)
            return math.inf
        next_at = min(execution.timeout_at, execution.loss.held_until)
        if not execution.is_start_told:
            start_at = execution.started_at + LATE_START_S
            if now >= start_at:
                slots.tell_start(execution)
            else:
                next_at = min(next_at, start_at)
        return next_at
