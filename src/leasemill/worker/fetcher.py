"""Claims jobs when there is room for them, and waits for more when there are none.

A claim whose reply was lost is repeated with the same request id, so that what it was granted is not orphaned (C5).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any, Final

from leasemill.api.observer import Observer
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState
from leasemill.operator.wording import counted, span
from leasemill.store.backoff import backoff_s
from leasemill.store.base import Watch
from leasemill.worker import pacing
from leasemill.worker.policies import is_limited
from leasemill.worker.runner import Runner
from leasemill.worker.settings import Settings

log = logging.getLogger("leasemill.worker")

CLAIM_MOST: Final = 1_000
REPORTS_S: Final = 0.02
"""How long jobs under limits may take, run and reported, that the next claim waits for them alone."""
FED_S: Final = 0.005
"""How long after a claim that went along with reports the next such is waited for, and nothing else is looked at."""
QUEUES_READ: Final = 10_000
POLL_S: Final = 1.0
"""How long to wait for a notification before claiming anyway."""


class Fetcher:
    """Keeps the runner supplied."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._worker_id = settings.worker_id
        self._store = settings.app.store
        self._metrics = settings.metrics
        self._observers = settings.observers
        self._names = list(settings.queues)
        self._credit: dict[str, int] = {}
        self._runner: Runner | None = None
        self._is_stopping = False
        self._must_claim = False
        self._waits_for_room: asyncio.Future[None] | None = None
        self._waits_for_jobs: asyncio.Future[bool] | None = None
        self._waits_for_reports: asyncio.Future[None] | None = None
        self._sleeps: asyncio.Future[None] | None = None
        self._waits_while_fed: asyncio.Future[None] | None = None
        self._is_claiming = False
        self._along = 0
        """How many jobs are asked for by a claim that goes along with reports."""
        self._fed_at = -FED_S
        self._has_more = False
        """The latest claim was granted all that it asked for: there are others to claim beside reports."""
        self._are_limited = False
        """T8: the latest jobs were under limits. More than there are slots for would be looked for in vain."""

    def stop(self) -> None:
        """Claim no more; `run` returns when a claim under way has been answered."""
        self._is_stopping = True
        self.room_changed()
        self.wake()
        if self._sleeps is not None:
            self._sleeps.cancel()

    def reported(self) -> None:
        """Reports are on record: there is room, and under a limit there are places."""
        waiter = self._waits_for_reports
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        self.room_changed()

    def room_changed(self) -> None:
        waiter = self._waits_for_room
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._settings.drains and self._runner is not None and self._runner.has_nothing_left:
            self.wake()  # also a run that is lost, and reports nothing, may have been the last

    def wake(self) -> None:
        """Something changed that may have made a job claimable: do not go on waiting."""
        self._must_claim = True
        self._wait_no_more()

    def _wait_no_more(self) -> None:
        if self._waits_for_jobs is not None:
            self._waits_for_jobs.cancel()
        if self._waits_while_fed is not None and not self._waits_while_fed.done():
            self._waits_while_fed.set_result(None)

    # Claims that go along with reports -----------------------------------------------------------------------------

    def claim_along(self, reported: int, *, are_lanes: bool) -> c.Claim | None:
        """A claim for the reporter to send with `reported` reports, whose ends make the next jobs of their lanes
        claimable or free places under limits. None: neither, or claims are made here now, or there is no room."""
        runner = self._runner
        if runner is None or self._is_stopping or self._is_claiming or self._along:
            return None
        if not self._is_under_limits(runner) and (self._has_more or not are_lanes):
            return None
        self._along = min(runner.room(reported), reported + 1, CLAIM_MOST)  # one more: if it comes there may be others
        if self._are_limited:
            self._along = min(self._along, runner.free_slots())
        if self._along <= 0:
            self._along = 0
            return None
        if self._waits_for_jobs is not None:
            self._waits_for_jobs.cancel()
        return self._new_claim(self._along, runner.free_slots())

    def claimed_along(self, leases: list[c.Lease] | None, sent_at: float, took_s: float) -> None:
        """The result; None: nothing is known, or nothing was asked for in the end."""
        assert self._runner is not None
        size, self._along = self._along, 0
        if leases is None:
            self.wake()
            return
        self._fed_at = time.monotonic()
        self._note(leases, took_s)
        self._runner.accept(leases, sent_at)
        self._has_more = len(leases) == size
        if leases:
            self._are_limited = any(is_limited(lease) for lease in leases)
        if not leases or self._has_more:
            self.wake()

    async def _fed(self) -> None:
        """Wait while claims go along with reports, one soon after the other."""
        while not self._must_not_wait():
            left_s = self._fed_at + FED_S - time.monotonic()
            if not self._is_fed():
                return
            self._waits_while_fed = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._waits_while_fed], timeout=REPORTS_S if self._along else left_s)
            self._waits_while_fed = None

    def _is_fed(self) -> bool:
        return self._along > 0 or time.monotonic() < self._fed_at + FED_S

    async def run(self, runner: Runner) -> None:
        """Until it is stopped or, when draining, no job is due."""
        self._runner = runner
        watch = await self._watch()
        empty_claims = 0
        try:
            while not self._is_stopping:
                if await self._left_to_reports(runner, watch):
                    continue
                size = min(runner.room() - self._along, CLAIM_MOST)
                if self._are_limited:
                    size = min(size, runner.free_slots())
                if size <= 0:
                    self._waits_for_room = asyncio.get_running_loop().create_future()
                    await self._waits_for_room
                    continue
                self._must_claim = False
                had_nothing_left = runner.has_nothing_left
                self._is_claiming = True
                leases, sent_at = await self._claim(size, runner.free_slots())
                self._is_claiming = False
                self._has_more = len(leases) == size
                runner.accept(leases, sent_at)
                if leases:
                    empty_claims = 0
                    self._are_limited = any(is_limited(lease) for lease in leases)
                    if self._has_more:
                        continue
                    if self._is_under_limits(runner) and await self._reports_soon() and not self._is_fed():
                        continue
                else:
                    empty_claims += 1
                    if self._settings.drains and had_nothing_left and not await self._something_is_due():
                        await self._log_waiting_jobs()
                        return
                    await self._sleep(pacing.pause_s(empty_claims))
                if await self._wait_for_jobs(watch):
                    empty_claims = 0
        finally:
            watch.close()

    def _is_under_limits(self, runner: Runner) -> bool:
        return self._are_limited or runner.has_limit

    async def _left_to_reports(self, runner: Runner, watch: Watch) -> bool:
        """Under limits the reports that are on their way take a claim along. False: they did not."""
        if not runner.is_reporting or not self._is_under_limits(runner):
            return False
        await self._reports_soon()
        if self._is_fed():
            await self._wait_for_jobs(watch)
            return True
        return self._is_stopping

    async def _reports_soon(self) -> bool:
        """Whether jobs in hand, which hold places, are reported at once: then waiting for others costs more."""
        self._waits_for_reports = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._waits_for_reports], timeout=REPORTS_S)
        is_reported, self._waits_for_reports = self._waits_for_reports.done(), None
        return is_reported

    async def _something_is_due(self) -> bool:
        """Now, or soon enough to wait for it. A claim may miss a job that another caller has locked, or is just
        admitting to its lane."""
        try:
            due_in_us = await self._store.arun(c.DueIn(self._names))
        except Unavailable:
            return True
        return due_in_us is not None and due_in_us <= self._settings.drain_wait_us

    async def _log_waiting_jobs(self) -> None:
        """The jobs that a drain leaves where they are: in paused queues, waiting for a retry, or due later."""
        fields, waiting = {"worker": self._worker_id}, 0
        with suppress(Unavailable):
            for queue in await self._store.arun(c.ListQueues(QUEUES_READ)):
                ready = queue.counts[JobState.READY] if queue.name in self._settings.queues else 0
                if queue.is_paused and ready:
                    message = "queue %s is paused, %s left waiting: leasemill queues resume %s lets workers have them"
                    log.warning(message, queue.name, counted(ready, "job"), queue.name, extra=fields)
                else:
                    waiting += ready
            due_in_us = await self._store.arun(c.DueIn(self._names)) if waiting else None
            if due_in_us is not None:
                advice = "" if self._settings.drain_wait_us else "; --drain-wait SECONDS waits for it"
                message = "no job is due: %s left waiting, the next is due in %s%s"
                log.info(message, counted(waiting, "job"), span(due_in_us), advice, extra=fields)

    async def _watch(self) -> Watch:
        failures = 0
        while True:
            try:
                return self._store.watch(self._names)
            except Unavailable:
                failures += 1
                await asyncio.sleep(backoff_s(failures, self._store.entropy.jitter()))

    async def _claim(self, size: int, slots: int) -> tuple[list[c.Lease], float]:
        """The leases, and the time before they were first asked for."""
        command, sent_at = self._new_claim(size, slots), time.monotonic()
        failures, fields = 0, {"worker": self._worker_id}
        while True:
            called_at = time.monotonic()
            try:
                leases = await self._store.arun(command)
            except Unavailable as error:
                failures += 1
                self._metrics.unavailable += 1
                self._observers.notify(Observer.store_failed, "claim")
                if failures == 1:
                    log.warning("the store is unavailable, will retry the claim with back-off: %s", error, extra=fields)
                await self._sleep(backoff_s(failures, self._store.entropy.jitter()))
                if self._is_stopping:
                    return [], sent_at
                if pacing.is_request_stale(sent_at, time.monotonic(), self._settings.times.shortest_lease_s):
                    command, sent_at = self._new_claim(size, slots), time.monotonic()
                continue
            if failures:
                log.info("the store is available again", extra=fields)
            self._note(leases, time.monotonic() - called_at)
            return leases, sent_at

    def _note(self, leases: list[c.Lease], took_s: float) -> None:
        self._metrics.claims += 1
        if not leases:
            self._metrics.claims_empty += 1
        if self._observers.are_there:
            self._observers.notify(Observer.store_called, "claim", took_s)
            self._observers.notify(Observer.claimed, leases, took_s)

    def _new_claim(self, size: int, slots: int) -> c.Claim:
        if len(self._names) > 1:
            order, self._credit = pacing.queue_order(self._settings.queues, self._credit)
        else:
            order = self._names
        *drawn, request = self._store.entropy.tokens(size + 1)
        begin = self._settings.instance
        length = len(begin)
        tokens = [begin + token[length:] for token in drawn]  # by which its leases are found should it die
        return c.Claim(self._worker_id, order, size, tokens, request, self._settings.kinds, slots)

    async def _wait_for_jobs(self, watch: Watch) -> bool:
        """True if it was time that ended the wait: then something may be due."""
        waiting: asyncio.Future[bool] | None = None
        while waiting is None or waiting.cancelled():
            await self._fed()
            if self._must_not_wait():
                return False
            try:
                due_in_us = await self._store.arun(c.DueIn(self._names))
            except Unavailable:
                due_in_us = None
            if self._must_not_wait():
                return False
            if self._along:
                continue
            waiting = asyncio.ensure_future(watch.wait_async(pacing.idle_s(due_in_us, POLL_S)))
            self._waits_for_jobs = waiting
            await _end_of(waiting)
            self._waits_for_jobs = None
        try:
            return not waiting.result()
        except Unavailable:
            await self._sleep(POLL_S)
            return True

    def _must_not_wait(self) -> bool:
        return self._must_claim or self._is_stopping

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0 and not self._is_stopping:
            self._sleeps = asyncio.ensure_future(asyncio.sleep(seconds))
            await _end_of(self._sleeps)
            self._sleeps = None


async def _end_of(future: asyncio.Future[Any]) -> None:
    """Wait until it is done or cancelled."""
    try:
        await asyncio.wait([future])
    finally:
        future.cancel()
