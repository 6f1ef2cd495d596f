"""Reports to the store how runs went: starts, acks, nacks and releases, many in one call.

Reports wait here until `store_loop` takes them as a batch. A batch that the store could not take is repeated as it is.
What is not reported yet counts as held, so an unavailable store stops the worker from claiming instead of filling its
memory. What must never happen here: a start that reaches the store after its end, or an end that overtakes an extension
of its lease (either would leave a refusal on record for a job with nothing wrong).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar, assert_never

from leasemill.api.observer import Observer
from leasemill.errors import Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND
from leasemill.store.backoff import backoff_s
from leasemill.worker.handler import Report, given_back, last_report
from leasemill.worker.heartbeat import Heartbeat
from leasemill.worker.pacing import REPORTED_START_S
from leasemill.worker.run import Phase, Run
from leasemill.worker.settings import Settings
from leasemill.worker.settlement import Fate, Settlement

log = logging.getLogger("leasemill.worker")

AnswerT = TypeVar("AnswerT")
ReportT = TypeVar("ReportT")
OutcomeT = TypeVar("OutcomeT")


class Batch(NamedTuple):
    """Reports that are sent together."""

    starts: list[Run]
    ends: list[tuple[Run, Report]]


class Granted(NamedTuple):
    """What a claim that went along with reports was granted; None: nothing is known, or it was not sent in the end."""

    leases: list[c.Lease] | None
    sent_at: float
    took_s: float


class Reporter:
    """Holds the reports that wait, and delivers a batch of them. On the event loop."""

    def __init__(
        self, settings: Settings, heartbeat: Heartbeat, settlement: Settlement, on_report: Callable[[], None]
    ) -> None:
        self._worker_id = settings.worker_id
        self._store = settings.app.store
        self._metrics = settings.metrics
        self._heartbeat = heartbeat
        self._observers = settings.observers
        self._settlement = settlement
        self._on_report = on_report
        """There is something to send."""
        self.starts: list[Run] = []
        self.ends: list[tuple[Run, Report]] = []
        self.acks = 0
        """How many of the ends are acks."""
        self.are_lanes = False
        """One of the ends is that of a job in a lane."""
        self.since = self.urgent_since = math.inf
        """Since when any of the reports waits, and any that others wait for."""
        self._held_back: list[tuple[Run, Report]] = []
        """Ends of runs whose extension is under way."""
        self.in_flight = 0
        """Ends that were taken and are not answered."""
        self.is_sending = False

    @property
    def unreported(self) -> int:
        """Ends that the store has not answered yet."""
        return len(self.ends) + len(self._held_back) + self.in_flight

    @property
    def is_empty(self) -> bool:
        return not (self.ends or self.starts or self._held_back or self.is_sending)

    # What is to be sent ------------------------------------------------------------------------------------------

    def report_start(self, run: Run) -> None:
        """An observation (X3): sent while the handler runs, or with its end."""
        self._add_start(run)
        self._note(is_urgent=True)

    def report_end(self, run: Run, report: Report | None) -> None:
        """How a run ended; None: the worker stopped it, and does not wait or has killed its process."""
        run.phase = Phase.ENDED
        last = last_report(run, report, self._store.entropy.jitter)
        if last is not None:
            self.send(run, last)

    def give_back(self, run: Run, delay_us: int | None = None) -> None:
        """Release the job without a penalty, for other workers to run."""
        self.send(run, given_back(run, delay_us))

    def send(self, run: Run, report: Report) -> None:
        run.phase = Phase.ENDED
        run.ended_at = now = run.ended_at or time.monotonic()
        has_run_long = run.started_at > 0 and now - run.started_at >= REPORTED_START_S
        is_ack = type(report) is c.AckReport
        if type(report) is c.DeathReport:
            if not run.is_start_reported:
                self._add_start(run)  # F4: deaths of runs that have started are counted
        elif has_run_long and not (run.is_start_reported or run.is_committed or type(report) is c.ReleaseReport):
            # The end implies the start (X3), and so does a commit: reported only when it was noticeably earlier.
            self._add_start(run)
        self.ends.append((run, report))
        self.acks += is_ack
        self.are_lanes |= run.lease.job.lane is not None
        self._note(is_urgent=not (is_ack and run.is_committed and run.is_alone))

    def _add_start(self, run: Run) -> None:
        run.is_start_reported = True
        self.starts.append(run)

    def _note(self, *, is_urgent: bool) -> None:
        """The first report of a batch sets the times by which it is sent: the others have little to do here."""
        if self.since == math.inf:
            self.since = time.monotonic()
        if is_urgent and self.urgent_since == math.inf:
            # report-5: while a batch is under way the others that come are company enough.
            self.urgent_since = -math.inf if self.is_sending else time.monotonic()
        self._on_report()

    # Extensions under way ----------------------------------------------------------------------------------------

    def hold_back(self) -> None:
        """Set aside the ends whose lease is being extended: an extension that came after its end would be refused.

        The heartbeat's thread chooses what it extends, under its lock, among runs that have not ended. So an end that
        is admitted here stays admitted, and one that is not waits for `extension_answered`.
        """
        admitted, held_back = self._heartbeat.admit(self.ends)
        if held_back:
            self._held_back += held_back
            self._set_ends(admitted)

    def extension_answered(self) -> None:
        """What was held back may be sent now, and waits no longer."""
        if self._held_back:
            self._set_ends(self._held_back + self.ends)
            self._held_back = []
        if self.ends or self.starts:
            self.since, self.urgent_since = min(self.since, time.monotonic()), -math.inf
            self._on_report()

    def _set_ends(self, ends: list[tuple[Run, Report]]) -> None:
        self.ends = ends
        self.acks = sum(type(report) is c.AckReport for _, report in ends)
        self.are_lanes = any(run.lease.job.lane is not None for run, _ in ends)

    # Sending -----------------------------------------------------------------------------------------------------

    def take(self) -> Batch:
        """Everything that waits, to be delivered now."""
        batch = Batch(self.starts, self.ends)
        self.starts, self.ends, self.acks, self.are_lanes = [], [], 0, False
        self.since = self.urgent_since = math.inf
        self.in_flight, self.is_sending = len(batch.ends), True
        self._metrics.flushes += 1
        return batch

    def sent(self) -> None:
        """The batch was answered, or cannot be: the next one may go."""
        self.in_flight, self.is_sending = 0, False

    async def deliver(self, batch: Batch, claim: c.Claim | None) -> Granted | None:
        """Send it, however long that takes. With a claim, the batch is acks alone; returns what it was granted."""
        if batch.starts:  # first: a start after its end would be refused
            now = time.monotonic()
            starts = [(run, _start_report(run, now)) for run in batch.starts]
            await self._deliver(starts, c.Start, self._settlement.started)
        if claim is not None:
            return await self._deliver_with_claim(batch.ends, claim)
        await self._deliver_ends(batch.ends)
        return None

    async def _deliver_ends(self, ends: list[tuple[Run, Report]]) -> None:
        acks: list[tuple[Run, c.AckReport]] = []
        nacks: list[tuple[Run, c.NackReport]] = []
        releases: list[tuple[Run, c.ReleaseReport]] = []
        deaths: list[tuple[Run, c.DeathReport]] = []
        for run, report in ends:
            match report:
                case c.AckReport():
                    acks.append((run, report))
                case c.NackReport():
                    nacks.append((run, report))
                case c.ReleaseReport():
                    releases.append((run, report))
                case c.DeathReport():
                    deaths.append((run, report))
                case _:
                    assert_never(report)
        settlement = self._settlement
        if not nacks and not releases and not deaths:
            await self._deliver(acks, c.Ack, settlement.acked)
        else:
            await asyncio.gather(
                self._deliver(acks, c.Ack, settlement.acked),
                self._deliver(nacks, c.Nack, settlement.nacked),
                self._deliver(releases, c.Release, settlement.released),
                self._deliver(deaths, c.Death, settlement.died),
            )

    async def _deliver(
        self,
        items: list[tuple[Run, ReportT]],
        command: Callable[[list[ReportT]], c.Command[list[OutcomeT | c.Lost]]],
        answered: Callable[[Run, ReportT, OutcomeT], Fate | None],
    ) -> None:
        if not items:
            return
        try:
            outcomes, took_s = await self._repeat(command([report for _, report in items]))
        except Refused as error:
            if len(items) == 1:
                log.error("a report was refused, the lease will expire: %s", error, extra=items[0][0].log_fields)
                return
            for item in items:  # a batch is refused whole for one malformed report: the others are sent singly
                await self._deliver([item], command, answered)
            return
        self._settlement.settle(items, outcomes, took_s, answered)

    async def _deliver_with_claim(self, ends: list[tuple[Run, Report]], claim: c.Claim) -> Granted:
        """C8: one message for the acks and the claim. Where the store refuses it, the acks are sent without."""
        acks = [(run, report) for run, report in ends if isinstance(report, c.AckReport)]
        command, sent_at = c.Ack([report for _, report in acks]), time.monotonic()
        try:
            (outcomes, leases), took_s = await self._repeated("ack", lambda: self._store.ack_and_claim(command, claim))
        except Refused:
            await self._deliver(acks, c.Ack, self._settlement.acked)
            return Granted(None, sent_at, 0.0)
        self._settlement.settle(acks, outcomes, took_s, self._settlement.acked_and_claimed)
        return Granted(leases, sent_at, took_s)

    async def repeat(self, command: c.Command[AnswerT]) -> AnswerT:
        """The store's answer, however long it takes: after a lost reply the same command gives the same answer (L6)."""
        return (await self._repeat(command))[0]

    async def _repeat(self, command: c.Command[AnswerT]) -> tuple[AnswerT, float]:
        return await self._repeated(type(command).__name__.lower(), lambda: self._store.arun(command))

    async def _repeated(self, verb: str, call: Callable[[], Awaitable[AnswerT]]) -> tuple[AnswerT, float]:
        """The answer, and how long the call took that was answered."""
        failures = 0
        while True:
            called_at = time.monotonic()
            try:
                answer = await call()
            except Unavailable as error:
                failures += 1
                self._metrics.unavailable += 1
                self._observers.notify(Observer.store_failed, verb)
                if failures == 1:
                    fields = {"worker": self._worker_id}
                    log.warning("the store is unavailable, will retry reports: %s", error, extra=fields)
                await asyncio.sleep(backoff_s(failures, self._store.entropy.jitter()))
                continue
            took_s = time.monotonic() - called_at
            if self._observers.are_there:
                self._observers.notify(Observer.store_called, verb, took_s)
            return answer, took_s


def _start_report(run: Run, now: float) -> c.StartReport:
    return c.StartReport(run.lease.job.id, run.lease.token, int((now - run.started_at) * SECOND))
