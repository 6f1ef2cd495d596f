"""Tells the store how runs went: starts, acks, nacks and releases, many in one call.

One batch is under way at a time, and what comes meanwhile makes the next, so batches grow with the store's latency by
themselves. A batch that the store could not take is repeated as it is. What is not told yet counts as held, so a store
that is away stops the worker from claiming instead of filling its memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar, assert_never

from leasemill.errors import Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobState
from leasemill.store.backoff import backoff_s
from leasemill.store.base import Store
from leasemill.worker.handler import Report
from leasemill.worker.joblog import JobLog
from leasemill.worker.metrics import Metrics
from leasemill.worker.pacing import START_WORTH_TELLING_S, flush_in_s
from leasemill.worker.run import Run

log = logging.getLogger("leasemill.worker")

ReportT = TypeVar("ReportT")
OutcomeT = TypeVar("OutcomeT")
Ended = tuple[Run, Report]


class Gate(Protocol):
    """Parts reports that may be sent from those about leases that are being extended at this moment."""

    def admit(self, reports: list[Ended]) -> tuple[list[Ended], list[Ended]]: ...


class Reporter:
    """Collects reports on the event loop and sends them."""

    def __init__(
        self,
        worker_id: str,
        store: Store,
        metrics: Metrics,
        gate: Gate,
        endings: JobLog,
        *,
        is_busy: Callable[[], bool],
        on_told: Callable[[], None],
        on_news: Callable[[], None],
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._metrics = metrics
        self._gate = gate
        self._endings = endings
        self._context = contextvars.copy_context()
        """Of no job: what is sent, and logged, is not the business of the handler that happened to end last."""
        self._is_busy = is_busy
        """More will end very soon: then a batch is worth a short wait."""
        self._on_told = on_told
        """A batch was answered, or cannot be (`failure` says so)."""
        self._on_news = on_news
        """A report may have made a job claimable, now or soon."""
        self.failure: BaseException | None = None
        self._starts: list[Run] = []
        self._ends: list[Ended] = []
        self._in_flight = 0
        self._timer: asyncio.Handle | None = None
        self._is_due_now = False
        self._has_new = False
        self._sending: asyncio.Task[None] | None = None

    @property
    def unreported(self) -> int:
        """Ends that the store has not answered yet."""
        return len(self._ends) + self._in_flight

    def tell_start(self, run: Run) -> None:
        """An observation (X3): told while the handler runs, or with its end."""
        run.is_start_told = True
        self._starts.append(run)
        self._schedule()

    def tell_end(self, run: Run, report: Report) -> None:
        run.ended_at = time.monotonic()
        if not run.is_start_told and type(report) is not c.ReleaseReport and _is_worth_telling(run):
            run.is_start_told = True
            self._starts.append(run)
        self._ends.append((run, report))
        self._schedule()

    async def drained(self) -> None:
        """Wait until everything is told."""
        while (self._sending is not None or self._ends or self._starts) and self.failure is None:
            self.flush()
            if self._sending is not None:
                await asyncio.wait([self._sending])
            else:
                await asyncio.sleep(0.001)  # what is left waits for an extension to be answered

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
        self._endings.close()

    def _schedule(self) -> None:
        self._has_new = True
        if self._sending is not None or self._is_due_now:
            return
        wait_s = flush_in_s(len(self._ends), is_busy=self._is_busy())
        loop = asyncio.get_running_loop()
        if wait_s == 0:
            if self._timer is not None:
                self._timer.cancel()
            self._is_due_now = True
            self._timer = loop.call_soon(self.flush)
        elif self._timer is None:
            self._timer = loop.call_later(wait_s, self.flush)

    def flush(self) -> None:
        """Send what is there, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_due_now = False
        if self._sending is None and (self._ends or self._starts) and self.failure is None:
            self._sending = asyncio.get_running_loop().create_task(self._send(), context=self._context)
            self._sending.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        self._in_flight = 0
        if not task.cancelled():
            self.failure = task.exception()
        if self._has_new:
            self.flush()  # it came when the task had nothing left to do but to end
        self._on_told()

    async def _send(self) -> None:
        while True:
            self._has_new = False
            ends, self._ends = self._gate.admit(self._ends)
            starts, self._starts = self._starts, []
            if not ends and not starts:
                return
            self._in_flight = len(ends)
            self._metrics.flushes += 1
            await self._tell_starts(starts)
            await self._tell_ends(ends)
            self._in_flight = 0
            self._on_told()

    # What is sent, by verb ---------------------------------------------------------------------------------------

    async def _tell_starts(self, starts: list[Run]) -> None:
        """Before the ends of the same batch: a start after its end would be refused."""
        if not starts:
            return
        now = time.monotonic()
        items = [(it, _start_report(it, now)) for it in starts]
        for run, outcome in await self._deliver(items, c.Start):
            if isinstance(outcome, c.Lost):
                self._refused(run, outcome)

    async def _tell_ends(self, ends: list[Ended]) -> None:
        acks: list[tuple[Run, c.AckReport]] = []
        nacks: list[tuple[Run, c.NackReport]] = []
        releases: list[tuple[Run, c.ReleaseReport]] = []
        for run, report in ends:
            match report:
                case c.AckReport():
                    acks.append((run, report))
                case c.NackReport():
                    nacks.append((run, report))
                case c.ReleaseReport():
                    releases.append((run, report))
                case _:
                    assert_never(report)
        if not nacks and not releases:
            await self._ack(acks)
        else:
            await asyncio.gather(self._ack(acks), self._nack(nacks), self._release(releases))

    async def _ack(self, items: list[tuple[Run, c.AckReport]]) -> None:
        for run, outcome in await self._deliver(items, c.Ack):
            match outcome:
                case c.Acked():
                    self._metrics.succeeded += 1
                    self._endings.succeeded(run)
                    if outcome.next_in_lane is not None:
                        self._on_news()
                case c.Lost():
                    self._refused(run, outcome)
                case _:
                    assert_never(outcome)

    async def _nack(self, items: list[tuple[Run, c.NackReport]]) -> None:
        errors = {report.token: report.error for _, report in items}
        for run, outcome in await self._deliver(items, c.Nack):
            match outcome:
                case c.Nacked():
                    self._count_failure(run, outcome, errors[run.lease.token])
                    self._on_news()
                case c.Lost():
                    self._refused(run, outcome)
                case _:
                    assert_never(outcome)

    def _count_failure(self, run: Run, outcome: c.Nacked, error: str) -> None:
        if outcome.state is JobState.READY:
            self._metrics.retried += 1
        elif outcome.state is JobState.FAILED:
            self._metrics.failed += 1
        else:
            self._metrics.succeeded += 1
        self._endings.failed(run, outcome, error)

    async def _release(self, items: list[tuple[Run, c.ReleaseReport]]) -> None:
        delays = {report.token: report.delay_us for _, report in items}
        for run, outcome in await self._deliver(items, c.Release):
            match outcome:
                case c.Released():
                    self._metrics.released += 1
                    if run.started_at and run.stop is None:
                        self._endings.given_back(run, delays[run.lease.token])
                    self._on_news()
                case c.Lost():
                    self._refused(run, outcome)
                case _:
                    assert_never(outcome)

    def _refused(self, run: Run, lost: c.Lost) -> None:
        self._metrics.refused += 1
        log.warning(
            "%s refused, the lease is not ours: %s; the latest attempt is %d",
            lost.verb,
            lost.reason,
            lost.current_attempt,
            extra=run.log_fields,
        )

    # Sending -----------------------------------------------------------------------------------------------------

    async def _deliver(
        self,
        items: list[tuple[Run, ReportT]],
        command: Callable[[list[ReportT]], c.Command[list[OutcomeT]]],
    ) -> list[tuple[Run, OutcomeT]]:
        if not items:
            return []
        try:
            outcomes = await self._repeat(command([report for _, report in items]))
        except Refused:
            return await self._deliver_singly(items, command)
        return [(run, outcome) for (run, _), outcome in zip(items, outcomes, strict=True)]

    async def _deliver_singly(
        self,
        items: list[tuple[Run, ReportT]],
        command: Callable[[list[ReportT]], c.Command[list[OutcomeT]]],
    ) -> list[tuple[Run, OutcomeT]]:
        """A batch is refused whole for one malformed report: the others are told, that one is left to its lease."""
        answered: list[tuple[Run, OutcomeT]] = []
        for run, report in items:
            try:
                outcomes = await self._repeat(command([report]))
            except Refused as error:
                log.error("a report was refused, the lease will expire: %s", error, extra=run.log_fields)
            else:
                answered.append((run, outcomes[0]))
        return answered

    async def _repeat(self, command: c.Command[list[OutcomeT]]) -> list[OutcomeT]:
        """The store's answer, however long it takes: after a lost reply the same command gives the same answer (L6)."""
        failures = 0
        while True:
            try:
                return await self._store.arun(command)
            except Unavailable as error:
                failures += 1
                self._metrics.unavailable += 1
                if failures == 1:
                    fields = {"worker": self._worker_id}
                    log.warning("the store is unavailable, will retry reports: %s", error, extra=fields)
                await asyncio.sleep(backoff_s(failures, self._store.entropy.jitter()))


def _is_worth_telling(run: Run) -> bool:
    """Its end implies its start (X3), and so has a commit; told apart only when it was noticeably earlier."""
    context = run.context
    if context is not None and context.is_committed:
        return False
    started_at = run.started_at
    return started_at > 0 and time.monotonic() - started_at >= START_WORTH_TELLING_S


def _start_report(run: Run, now: float) -> c.StartReport:
    lease = run.lease
    return c.StartReport(lease.job.id, lease.token, int((now - run.started_at) * SECOND))
