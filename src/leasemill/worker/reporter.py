"""Reports to the store how runs went: starts, acks, nacks and releases, many in one call.

One batch is under way at a time, and what comes meanwhile makes the next, so batches grow with the store's latency by
themselves. A batch that the store could not take is repeated as it is. What is not reported yet counts as held, so an
unavailable store stops the worker from claiming instead of filling its memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, TypeVar, assert_never

from leasemill.api.observer import End, Observer, Settled
from leasemill.errors import Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobState, Verb
from leasemill.operator.wording import counted
from leasemill.store.backoff import backoff_s
from leasemill.worker.claims import ClaimsAlong
from leasemill.worker.coroutines import new_task
from leasemill.worker.handler import Report, given_back, last_report
from leasemill.worker.heartbeat import Heartbeat
from leasemill.worker.hooks import WorkerHooks
from leasemill.worker.joblog import JobLog
from leasemill.worker.pacing import REPORTED_START_S, flush_in_s
from leasemill.worker.run import Phase, Run, Stop
from leasemill.worker.settings import Settings
from leasemill.worker.slots import Slots

log = logging.getLogger("leasemill.worker")

AnswerT = TypeVar("AnswerT")
ReportT = TypeVar("ReportT")
OutcomeT = TypeVar("OutcomeT")

_Fate: TypeAlias = tuple[End, str | None]
"""How the store settled a run, and the error if there is one."""
_SUCCEEDED: Final[_Fate] = ("succeeded", None)


class Reporter:
    """Collects reports on the event loop and sends them."""

    def __init__(
        self,
        settings: Settings,
        slots: Slots,
        heartbeat: Heartbeat,
        hooks: WorkerHooks,
        *,
        on_answered: Callable[[], None],
        on_claimable: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        claims: ClaimsAlong,
    ) -> None:
        self._worker_id = settings.worker_id
        self._store = settings.app.store
        self._slots = slots
        self._metrics = settings.metrics
        self._heartbeat = heartbeat
        self._observers = settings.observers
        self._notify_settled = self._observers.notifier(Observer.settled)
        self._hooks = hooks
        self._joblog = JobLog(settings.worker_id)
        self._context = contextvars.copy_context()
        """Of no job: what is sent, and logged, is not the business of the handler that happened to end last."""
        self._on_answered = on_answered
        """A batch was answered, or cannot be."""
        self._on_claimable = on_claimable
        """A report may have made a job claimable, now or soon."""
        self._on_failure = on_failure
        self._claims = claims
        self.failure: BaseException | None = None
        self._starts: list[Run] = []
        self._ends: list[tuple[Run, Report]] = []
        self._in_flight = 0
        self._timer: asyncio.Handle | None = None
        self._due_at = 0.0
        """When the timer calls, by the loop's clock."""
        self._has_new = self._has_urgent = False
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def unreported(self) -> int:
        """Ends that the store has not answered yet."""
        return len(self._ends) + self._in_flight

    # What is to be sent ------------------------------------------------------------------------------------------

    def report_start(self, run: Run) -> None:
        """An observation (X3): sent while the handler runs, or with its end."""
        self._add_start(run)
        self._schedule(is_urgent=True)

    def report_end(self, run: Run, report: Report | None) -> None:
        """How a run ended; None: the worker stopped it, and does not wait or has killed its process."""
        run.phase = Phase.ENDED
        last = last_report(run, report, self._store.entropy.jitter)
        if last is not None:
            self.send(run, last)

    def give_back(self, run: Run, delay_us: int | None = None) -> None:
        """Without a penalty, for others to run."""
        self.send(run, given_back(run, delay_us))

    def send(self, run: Run, report: Report) -> None:
        run.phase = Phase.ENDED
        run.ended_at = now = run.ended_at or time.monotonic()
        has_run_long = run.started_at > 0 and now - run.started_at >= REPORTED_START_S
        if type(report) is c.DeathReport:
            if not run.is_start_reported:
                self._add_start(run)  # F4: deaths of runs that have started are counted
        elif has_run_long and not (run.is_start_reported or run.is_committed or type(report) is c.ReleaseReport):
            # The end implies the start (X3), and so does a commit: reported only when it was noticeably earlier.
            self._add_start(run)
        self._ends.append((run, report))
        self._schedule(is_urgent=not (type(report) is c.AckReport and run.is_committed and run.is_alone))

    def _add_start(self, run: Run) -> None:
        run.is_start_reported = True
        self._starts.append(run)

    # When it is sent ---------------------------------------------------------------------------------------------

    def _schedule(self, *, is_urgent: bool) -> None:
        self._has_new = True
        self._has_urgent |= is_urgent
        if self._sending is not None or self._is_closed:
            return
        wait_s = flush_in_s(len(self._ends), len(self._slots.queued), is_urgent=self._has_urgent)
        if not wait_s:
            self.flush()  # its task begins in the loop's next turn, and takes what is there by then
            return
        loop = asyncio.get_running_loop()
        due_at = loop.time() + wait_s
        if self._timer is None or due_at < self._due_at:
            if self._timer is not None:
                self._timer.cancel()
            self._due_at = due_at
            self._timer = loop.call_later(wait_s, self.flush)

    def flush(self) -> None:
        """Send what is there, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is not None:
            self._has_new = self._has_urgent = True  # what an extension held back may be sent now
        elif (self._ends or self._starts) and self.failure is None and not self._is_closed:
            self._sending = new_task(self._send(), self._context)
            self._sending.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        self._in_flight = 0
        if not task.cancelled():
            self.failure = task.exception()
        if self._has_new:
            self._schedule(is_urgent=False)
        if self.failure is not None:
            self._on_failure(self.failure)
        self._on_answered()

    async def send_last(self, until: float) -> None:
        """Wait until everything is reported, no longer than until this monotonic time."""
        sending = asyncio.ensure_future(self._drained())
        await asyncio.wait([sending], timeout=max(0.0, until - time.monotonic()))
        sending.cancel()
        if left := self.unreported:
            leases = "its lease" if left == 1 else "their leases"
            fields = {"worker": self._worker_id}
            log.warning("%s could not be sent: %s will expire", counted(left, "report"), leases, extra=fields)

    async def _drained(self) -> None:
        while (self._sending is not None or self._ends or self._starts) and self.failure is None:
            self.flush()
            if self._sending is not None:
                await asyncio.wait([self._sending])
            else:
                await asyncio.sleep(0.001)  # what is left waits for an extension to be answered

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
        self._joblog.close()

    # Sending -----------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        self._has_urgent = True
        while self._has_urgent:
            self._has_new = self._has_urgent = False
            ends, self._ends = self._heartbeat.admit(self._ends)
            starts, self._starts = self._starts, []
            if not ends and not starts:
                return
            self._in_flight = len(ends)
            self._metrics.flushes += 1
            if starts:  # first: a start after its end would be refused
                now = time.monotonic()
                await self._deliver([(run, _start_report(run, now)) for run in starts], c.Start, _started)
            await self._send_ends(ends)
            self._in_flight = 0
            self._on_answered()

    async def _send_ends(self, ends: list[tuple[Run, Report]]) -> None:
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
        if not nacks and not releases and not deaths:
            if not await self._deliver_with_claim(acks):
                await self._deliver(acks, c.Ack, self._acked)
        else:
            await asyncio.gather(
                self._deliver(acks, c.Ack, self._acked),
                self._deliver(nacks, c.Nack, self._nacked),
                self._deliver(releases, c.Release, self._released),
                self._deliver(deaths, c.Death, self._died),
            )

    async def _deliver(
        self,
        items: list[tuple[Run, ReportT]],
        command: Callable[[list[ReportT]], c.Command[list[OutcomeT | c.Lost]]],
        answered: Callable[[Run, ReportT, OutcomeT], _Fate | None],
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
        self._settle(items, outcomes, took_s, answered)

    def _settle(
        self,
        items: list[tuple[Run, ReportT]],
        outcomes: Sequence[OutcomeT | c.Lost],
        took_s: float,
        answered: Callable[[Run, ReportT, OutcomeT], _Fate | None],
    ) -> None:
        notify, settled = self._notify_settled, list[Settled]()
        for (run, report), outcome in zip(items, outcomes, strict=True):
            fate = self._refused(run, outcome) if isinstance(outcome, c.Lost) else answered(run, report, outcome)
            if fate is not None and notify is not None:
                settled.append(Settled(run.lease, *fate))
        if notify is not None and settled:
            notify(settled, took_s)

    async def _deliver_with_claim(self, acks: list[tuple[Run, c.AckReport]]) -> bool:
        """C8: with the heads of lanes that have ended, or the ends that free places, goes a claim, for the next ones.
        False: they are to be sent without."""
        are_lanes = any(run.lease.job.lane is not None for run, _ in acks)
        claim = self._claims.claim_along(len(acks), are_lanes=are_lanes)
        if claim is None:
            return False
        command, sent_at = c.Ack([report for _, report in acks]), time.monotonic()
        leases: list[c.Lease] | None = None
        took_s = 0.0
        try:
            (outcomes, leases), took_s = await self._repeated("ack", lambda: self._store.ack_and_claim(command, claim))
        except Refused:
            return False
        else:
            self._settle(acks, outcomes, took_s, lambda run, _, __: self._succeeded(run))
            return True
        finally:
            self._claims.claimed_along(leases, sent_at, took_s)

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

    # What the store answered -------------------------------------------------------------------------------------

    def _acked(self, run: Run, report: c.AckReport, outcome: c.Acked) -> _Fate:
        rules = run.lease.job.rules
        if outcome.next_in_lane is not None or (rules is not None and rules.limits):
            self._on_claimable()
        return self._succeeded(run)

    def _succeeded(self, run: Run) -> _Fate:
        self._metrics.succeeded += 1
        self._joblog.succeeded(run)
        self._hooks.succeeded(run)
        return _SUCCEEDED

    def _nacked(self, run: Run, report: c.NackReport, outcome: c.Nacked) -> _Fate:
        end: End = "succeeded"
        if outcome.state is JobState.READY:
            self._metrics.retried += 1
            end = "retried"
            self._hooks.retried(run, report.error, outcome.available_at)
        elif outcome.state is JobState.FAILED:
            self._metrics.failed += 1
            end = "failed"
            self._hooks.failed(run, report.error)
        else:
            self._metrics.succeeded += 1
            self._hooks.succeeded(run, report.error)
        self._joblog.failed(run, outcome, report.error)
        run.raised = None
        self._on_claimable()
        return end, report.error

    def _released(self, run: Run, report: c.ReleaseReport, outcome: c.Released) -> _Fate:
        self._metrics.released += 1
        if run.started_at and run.stop in (None, Stop.SHUTDOWN):
            self._joblog.released(run, report, outcome)
        self._on_claimable()
        if outcome.state is not JobState.SUCCEEDED:
            return "released", report.error
        self._hooks.succeeded(run, report.error)
        return "succeeded", report.error

    def _died(self, run: Run, report: c.DeathReport, outcome: c.Died) -> _Fate:
        self._metrics.died += 1
        self._joblog.died(run, outcome, report.cause)
        self._on_claimable()
        if outcome.state is JobState.SUCCEEDED:
            self._hooks.succeeded(run, report.cause)
            return "succeeded", report.cause
        if outcome.state is JobState.DEAD:
            self._hooks.failed(run, report.cause, is_dead=True)
            return "dead", report.cause
        self._hooks.retried(run, report.cause, None)
        return "retried", report.cause

    def _refused(self, run: Run, lost: c.Lost) -> _Fate | None:
        self._metrics.refused += 1
        log.warning(
            "%s refused, lease not held (%s): the latest attempt is %d",
            lost.verb,
            lost.reason,
            lost.current_attempt,
            extra=run.log_fields,
        )
        if lost.verb is Verb.START:
            return None
        self._hooks.refused(run, lost.reason)
        return "refused", lost.reason


def _started(run: Run, report: c.StartReport, outcome: c.Started) -> None:
    """A start that was recorded changes nothing here."""


def _start_report(run: Run, now: float) -> c.StartReport:
    return c.StartReport(run.lease.job.id, run.lease.token, int((now - run.started_at) * SECOND))
