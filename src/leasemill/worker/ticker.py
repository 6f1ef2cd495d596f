"""Sets the schedules that code declares, and fires ticks when they are due. Every worker does; one is first (P2).

Nothing is kept here but when to look again: a tick is in the store until it has been decided on, so that a worker that
dies, or cannot reach the store, loses none. What must never happen: a schedule that cannot be computed here, for want
of its time zone, keeps the others from being fired.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final

from leasemill.api.observer import Observer
from leasemill.api.schedule_commands import fire_of, is_same, list_schedules, move_back, set_schedule
from leasemill.api.schedules import Schedules
from leasemill.errors import Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import MILLISECOND, SECOND
from leasemill.kernel.schedule import CAUGHT_UP, Schedule, SkipReason, TickFire
from leasemill.kernel.transitions.actions import DECLARED
from leasemill.operator.wording import instant
from leasemill.store.backoff import backoff_s
from leasemill.store.base import Store
from leasemill.worker.housekeeping import Chore
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import Observers
from leasemill.worker.store_clock import StoreClock
from leasemill.worker.threads import DaemonExecutor

log = logging.getLogger("leasemill.worker")

LOOK_S: Final = 5.0
"""A schedule that was set elsewhere is noticed within this time; one that is known is fired when it is due."""
LOOK_BACK_S: Final = 300.0
"""How often every schedule is read, to find one whose next tick lies too far ahead."""
STAGGER_US: Final = 200 * MILLISECOND
"""Workers wake up within this time of each other: most find the tick decided on."""
PAGE: Final = 1_000


class Ticker:
    """Fires what is due, and knows when something will be."""

    def __init__(
        self,
        worker_id: str,
        schedules: Schedules,
        store: Store,
        metrics: Metrics,
        monotonic: Callable[[], float] = time.monotonic,
        clock: StoreClock | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._schedules = schedules
        self._store = store
        self._metrics = metrics
        self._monotonic = monotonic
        self._is_registered = False
        self.clock = clock or StoreClock(worker_id)
        self._next_at: int | None = None
        self._read_now, self._read_at = 0, 0.0
        """The store's time as it was last read, and when that was by the monotonic clock."""
        self._looked_back_at = -math.inf
        self._failures = 0
        self._retry_at = -math.inf
        self._refused: dict[str, str] = {}
        self._stagger_us = int.from_bytes(blake2b(worker_id.encode(), digest_size=8).digest(), "big") % STAGGER_US

    async def fire_first(self, observers: Observers) -> None:
        """Before the first claim, so that a worker which drains finds what is due; later the housekeeping does it."""
        try:
            await asyncio.get_running_loop().run_in_executor(DaemonExecutor(1), self.run)
        except (Unavailable, OSError) as error:
            self._metrics.unavailable += 1
            observers.notify(Observer.store_failed, "schedules")
            log.warning("schedules postponed: %s", error, extra={"worker": self._worker_id})

    def run(self) -> None:
        """Fire what is due; the first time, set what is declared. Repeated later if the store is unavailable."""
        try:
            next_at = self._fire_due()
            if not self._is_registered:
                self._register()
                self._is_registered = True
                next_at = self._fire_due()
            if self._monotonic() >= self._looked_back_at + LOOK_BACK_S:
                self._looked_back_at = self._monotonic()
                if self._move_back():
                    next_at = self._fire_due()
        except (Unavailable, OSError):
            self._failures += 1
            self._retry_at = self._monotonic() + backoff_s(self._failures, self._store.entropy.jitter())
            raise
        self._failures = 0
        self._next_at = next_at

    def due_at(self, done_at: float | None) -> float:
        """When to run again, by the monotonic clock: when the store's time, as last read, will have come to the next
        tick. A store whose clock is stepped is read again within `LOOK_S`."""
        if done_at is None:
            return -math.inf
        latest = done_at + LOOK_S
        if self._failures:
            return min(latest, self._retry_at)
        if self._next_at is None:
            return latest
        return min(latest, self._read_at + (self._next_at + self._stagger_us - self._read_now) / SECOND)

    # What is declared

    def _register(self) -> None:
        """Set what differs. What is not declared here stays: other code may declare it, or nobody but an operator."""
        for name, declared in self._schedules.declared.items():
            try:
                spec = declared.spec()
                if is_same(self._store.run(c.GetSchedule(name)), spec):
                    continue
                schedule = set_schedule(self._store, spec, by=self._worker_id, reason=DECLARED)
            except Refused as error:
                self._refuse(name, error)
                continue
            log.info(
                "schedule %s set: %s (%s), revision %d",
                *(name, spec.expression, spec.zone, schedule.revision),
                extra={"worker": self._worker_id},
            )

    # What is due

    def _fire_due(self) -> int | None:
        """Until nothing is due that can be fired here; returns the next tick, if it is known and to come."""
        store = self._store
        while True:
            now, next_at = self._time(), store.run(c.NextTick())
            if next_at is None or next_at > now:
                return next_at
            due = store.run(c.DueSchedules(now, PAGE))
            fires = [fire for schedule in due if (fire := self._fire_of(schedule, now)) is not None]
            if due and not fires:
                return None
            for batch in _batches(fires):
                for outcome in store.run(c.FireTicks(batch, now)):
                    self._report(outcome)

    def _time(self) -> int:
        """The store's time, and when that was."""
        self._read_at = self._monotonic()
        self._read_now = self._store.time()
        if not self._store.has_test_clock:
            self.clock.observe(self._read_now)
            if self.clock.is_to_be_followed(self._store.presence):
                self._read_now = self._store.set_clock() or self._read_now
        return self._read_now

    def _fire_of(self, schedule: Schedule, now: int) -> TickFire | None:
        try:
            return fire_of(schedule, now)
        except Refused as error:
            self._refuse(schedule.spec.name, error)
            return None

    # What lies too far ahead

    def _move_back(self) -> bool:
        """P10: schedules that a wrong clock has moved far ahead, which would be silent until then."""
        is_moved = False
        for schedule in list_schedules(self._store):
            name = schedule.spec.name
            try:
                moved = move_back(self._store, schedule, by=self._worker_id)
            except Refused as error:
                self._refuse(name, error)
                continue
            if moved is not None:
                is_moved = True
                log.error(
                    "schedule %s: its next tick was %s, which a wrong clock must have set; it goes on at %s. Ticks "
                    "that were passed over can be made up for with `leasemill cron backfill %s`",
                    *(name, instant(schedule.next_at), instant(moved.next_at), name),
                    extra={"worker": self._worker_id},
                )
        return is_moved

    def _refuse(self, name: str, error: Refused) -> None:
        """Logged once for each schedule and reason."""
        if self._refused.get(name) != str(error):
            self._refused[name] = str(error)
            log.error("schedule %s cannot be used here: %s", name, error, extra={"worker": self._worker_id})

    def _report(self, outcome: c.TickOutcome) -> None:
        if not isinstance(outcome, c.TickFired):
            return  # another worker was first
        fields = {"worker": self._worker_id}
        self._metrics.ticks_fired += len(outcome.job_ids)
        self._metrics.ticks_skipped += len(outcome.skips)
        for job_id in outcome.job_ids:
            log.info("schedule %s fired", outcome.name, extra={**fields, "job": job_id})
        for skip in outcome.skips:
            if skip.reason is not SkipReason.MISSED:
                why = "" if skip.job_id is None else f": job {skip.job_id}"
                log.warning("schedule %s skipped a tick (%s%s)", outcome.name, skip.reason, why, extra=fields)
        missed = sum(skip.reason is SkipReason.MISSED for skip in outcome.skips)
        if missed:
            log.warning("schedule %s missed at least %d of its ticks", outcome.name, missed, extra=fields)


class TickChore(Chore):
    """The ticker's part of the housekeeping: due when a tick is."""

    def __init__(self, ticker: Ticker) -> None:
        super().__init__("schedules", lambda: LOOK_S, ticker.run)
        self._ticker = ticker

    @property
    def due_at(self) -> float:
        return self._ticker.due_at(self.done_at)


def _batches(fires: list[TickFire]) -> Iterator[list[TickFire]]:
    """As many as fit into one call, by their ticks."""
    batch: list[TickFire] = []
    count = 0
    for fire in fires:
        if batch and count + len(fire.due) > CAUGHT_UP:
            yield batch
            batch, count = [], 0
        batch.append(fire)
        count += len(fire.due)
    if batch:
        yield batch
