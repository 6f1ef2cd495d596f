"""The slots: which jobs run, which wait for a slot, and what happens when one ends or has to be stopped.

All of it on the event loop. A slot is free again when its handler has really ended: a thread that outlives its timeout
or its lease keeps its slot.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, assert_never

from leasemill.api.job import JobType
from leasemill.errors import LeasemillError, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, AbortReason
from leasemill.store.backoff import backoff_s
from leasemill.store.base import Store
from leasemill.worker import pacing
from leasemill.worker.handler import Report, call_async, given_back, timed_out
from leasemill.worker.heartbeat import Heartbeat
from leasemill.worker.metrics import Metrics
from leasemill.worker.reporter import Reporter
from leasemill.worker.run import Phase, Run, Stop
from leasemill.worker.stalls import Stalls
from leasemill.worker.threads import HandlerThreads
from leasemill.worker.unmatched import UnmatchedJobs
from leasemill.worker.watchdog import Watchdog

log = logging.getLogger("leasemill.worker")

CANCEL_GRACE_S: Final = 5.0
"""How long a cancelled async handler may take to clean up before its job is reported without it."""


class Runner:
    """Runs leases in slots."""

    def __init__(
        self,
        worker_id: str,
        store: Store,
        jobs: Mapping[str, JobType[..., Any]],
        concurrency: int,
        most_ahead: int,
        metrics: Metrics,
        mismatches: UnmatchedJobs,
        *,
        on_room: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        on_stuck: Callable[[], None],
    ) -> None:
        self.concurrency = concurrency
        self.active: dict[str, Run] = {}
        """By token: every handler that holds a slot."""
        self.queued: deque[Run] = deque()
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._worker_id = worker_id
        self._store = store
        self._jobs = jobs
        self._most_ahead = most_ahead
        self._metrics = metrics
        self._mismatches = mismatches
        self._on_room = on_room
        self._on_failure = on_failure
        self._on_stuck = on_stuck
        """No slot is left that could run anything."""
        self._left: dict[str, Run] = {}
        """By job: handlers that have not returned although their job is over here. They keep their slots."""
        self._pace = 0.0
        self._round_trip_s = 0.0
        self._ended_count = 0
        self._measured_at = time.monotonic()
        self._takes_no_more = False
        self._emptied: asyncio.Future[None] | None = None
        self._threads = HandlerThreads(worker_id, concurrency, self._ended)
        self.watchdog = Watchdog(self)

    def connect(self, reporter: Reporter, heartbeat: Heartbeat, stalls: Stalls) -> None:
        self._reporter = reporter
        self._heartbeat = heartbeat
        self._stalls = stalls
        self._mismatches.connect(reporter.tell_end)

    @property
    def is_idle(self) -> bool:
        """Nothing is left to run or to wait for."""
        return not self.queued and all(it.is_stuck for it in self.active.values())

    @property
    def has_nothing_left(self) -> bool:
        return self.is_idle and self._unreported == 0

    @property
    def _unreported(self) -> int:
        return self._reporter.unreported + self._mismatches.undecided

    def room(self) -> int:
        """How many more jobs to claim now."""
        ahead = pacing.prefetch(self._pace, self._round_trip_s, self._most_ahead)
        return pacing.claim_size(self.concurrency, ahead, len(self.active), len(self.queued), self._unreported)

    # From the claim to the handler -------------------------------------------------------------------------------

    def accept(self, leases: Sequence[c.Lease], sent_at: float) -> None:
        """Take over what a claim, first sent at `sent_at`, was granted."""
        self._measure(sent_at)
        jobs = self._jobs
        for lease in leases:
            job = jobs.get(lease.job.kind)
            if job is None:
                self._mismatches.take(lease, sent_at, f"no handler for kind {lease.job.kind!r}")
            elif lease.job.id in self._left:
                self._put_off(lease, sent_at)
            else:
                self.queued.append(Run(lease, job, sent_at))
        self._metrics.claimed += len(leases)
        if self._takes_no_more:
            self.give_back_queued()
            return
        self._fill()
        if self.queued:
            self.watchdog.expect(sent_at + pacing.patience_s(min(it.lease_s for it in self.queued)))

    def _measure(self, sent_at: float) -> None:
        """How fast jobs end and how fast the store answers decide how many are held ahead."""
        now = time.monotonic()
        self._round_trip_s = pacing.round_trip_s(self._round_trip_s, now - sent_at)
        self._pace = pacing.pace(self._pace, self._ended_count, now - self._measured_at)
        self._ended_count, self._measured_at = 0, now

    def _fill(self) -> None:
        queued, active = self.queued, self.active
        while queued and len(active) < self.concurrency:
            run = queued.popleft()
            if not run.is_held:
                self._lost_while_queued(run)
                continue
            lease = run.lease
            why = run.mismatch()
            if why is not None:
                self._mismatches.take(lease, run.sent_at, why)
                continue
            active[lease.token] = run
            if pacing.starts_durably(lease.attempt, lease.retries, lease.expirations):
                run.phase = Phase.RUNNING
                self._heartbeat.expect(run)
                self.watchdog.expect(run.loss.held_until)
                run.task = self._loop.create_task(self._start_durably(run))
            else:
                self._begin(run)
        self._metrics.running, self._metrics.queued = len(active), len(queued)

    def _begin(self, run: Run) -> None:
        run.begin(self._store)
        self._heartbeat.expect(run)
        self.watchdog.expect(run.started_at + pacing.LATE_START_S)
        self._metrics.started += 1
        jitter = self._store.entropy.jitter()
        if run.job.is_async:
            self._stalls.watch()
            run.stalled_before_s = self._stalls.total_s
            # A context of its own: what one job sets must not show in another.
            run.task = self._loop.create_task(self._call(run, jitter), context=self._context.copy())
        else:
            run.task = None
            self._threads.start(run, jitter)

    async def _call(self, run: Run, jitter: float) -> None:
        self._ended(run, await call_async(run, jitter))

    async def _start_durably(self, run: Run) -> None:
        """F4: an earlier run did not end by reporting, so this start is on record before the handler runs."""
        lease = run.lease
        run.is_start_told = True
        try:
            outcome = await self._told_start(c.Start([c.StartReport(lease.job.id, lease.token)]))
        except asyncio.CancelledError:
            self._ended(run, given_back(run))
            return
        except LeasemillError as error:
            self._free(run)
            self._on_failure(error)
            return
        run.task = None
        if isinstance(outcome, c.Lost):
            self._metrics.refused += 1
            self.lose(run, outcome.reason)
            self._free(run)
            return
        self._begin(run)
        await self._note_takeover(lease)

    async def _note_takeover(self, lease: c.Lease) -> None:
        """Say whose lease ran out: the expiry itself may have been recorded by a claim, which tells nobody."""
        try:
            job = await self._store.ajob(lease.job.id)
        except Unavailable:
            return  # only a note is lost
        executions = () if job is None else job.executions
        for run in executions:
            if run.attempt == lease.attempt - 1 and run.reason is AbortReason.EXPIRED:
                waited_s = max(0, lease.leased_at - run.expires_at) / SECOND
                self._metrics.taken_over += 1
                self._metrics.taken_over_seconds += waited_s
                self._metrics.taken_over_seconds_max = max(self._metrics.taken_over_seconds_max, waited_s)
                log.warning(
                    "job runs again %.1f s after the lease of worker %s expired",
                    waited_s,
                    run.worker,
                    extra={
                        "job": lease.job.id,
                        "kind": lease.job.kind,
                        "attempt": lease.attempt,
                        "worker": lease.worker,
                    },
                )

    async def _told_start(self, command: c.Start) -> c.StartOutcome:
        failures = 0
        while True:
            try:
                return (await self._store.arun(command))[0]
            except Unavailable:
                failures += 1
                self._metrics.unavailable += 1
                await asyncio.sleep(backoff_s(failures, self._store.entropy.jitter()))

    def _put_off(self, lease: c.Lease, sent_at: float) -> None:
        """An earlier run of this job goes on in this worker: two at a time are one too many."""
        run = Run.without_handler(lease, sent_at)
        log.warning(
            "job given back for a while: its attempt %d has not returned in this worker",
            self._left[lease.job.id].lease.attempt,
            extra=run.log_fields,
        )
        self._reporter.tell_end(run, given_back(run, pacing.put_off_us(lease.attempt)))

    # Ends --------------------------------------------------------------------------------------------------------

    def _ended(self, run: Run, report: Report) -> None:
        """The handler has really ended; the slot is free."""
        if run.phase is Phase.RUNNING:
            if run.stop is None and run.loss.reason is not None:
                self._note_loss(run, run.loss.reason)  # its own commit was refused, or the heartbeat knew
            run.phase = Phase.ENDED
            self._report(run, report)
        if run.started_at:
            run_s = time.monotonic() - run.started_at
            self._metrics.run_seconds += run_s
            self._ended_count += 1
        self._free(run)

    def _free(self, run: Run) -> None:
        run.phase = Phase.ENDED
        run.task = None
        del self.active[run.lease.token]
        if run.left_at is not None:
            self._returned(run)
        if self.queued:
            self._fill()
        else:
            self._metrics.running = len(self.active)
        self._note_emptied()
        self._on_room()

    def _note_emptied(self) -> None:
        if self._emptied is not None and not self._emptied.done() and all(it.is_stuck for it in self.active.values()):
            self._emptied.set_result(None)

    def _report(self, run: Run, report: Report) -> None:
        match run.stop:
            case None:
                self._warn_of_dropped_result(run, report)
                self._reporter.tell_end(run, report)
            case Stop.TIMEOUT:
                self._reporter.tell_end(run, timed_out(run, self._store.entropy.jitter()))
            case Stop.SHUTDOWN:
                self._reporter.tell_end(run, given_back(run) if _is_cut_short(report) else report)
            case Stop.LOST:
                pass  # whatever the handler said is dropped
            case _:
                assert_never(run.stop)

    def _warn_of_dropped_result(self, run: Run, report: Report) -> None:
        context = run.context
        if context is None or not context.has_committed_without_result:
            return
        if type(report) is c.AckReport and report.result is not None:
            log.warning(
                "the handler returned a result after its commit, where it is not kept: use tx.set_result",
                extra=run.log_fields,
            )

    def tell_start(self, run: Run) -> None:
        self._reporter.tell_start(run)

    # Stops -------------------------------------------------------------------------------------------------------

    def lose(self, run: Run, reason: str | None) -> None:
        """The lease is not ours any more, as the store says, or (None) as time does."""
        if run.phase is not Phase.RUNNING or run.stop is Stop.LOST:
            return
        if reason is None and time.monotonic() < run.loss.held_until:
            return  # extended in the meantime
        run.loss.set(reason or "expired")
        self._note_loss(run, reason or "it could not be extended in time")
        run.phase = Phase.ENDED
        if reason is None:
            # The store was not heard. Giving the job back frees it at once, or leaves a record that it came too late.
            self._reporter.tell_end(run, given_back(run))
        self._leave(run)
        self._cancel(run)

    def _note_loss(self, run: Run, reason: str) -> None:
        run.stop = Stop.LOST
        self._metrics.lost += 1
        log.warning("lease lost (%s): the handler's result is dropped", reason, extra=run.log_fields)

    def is_excused(self, run: Run) -> bool:
        """Time in which others blocked the event loop is not an async handler's: it gets as much more."""
        if run.task is None:
            return False  # a thread ran on meanwhile
        self._stalls.alive()
        excused_s = self._stalls.excused_s(run)
        if excused_s <= 0:
            return False
        run.excuse(excused_s)
        return time.monotonic() < run.timeout_at

    def time_out(self, run: Run) -> None:
        """Its time is up: an async handler is cancelled, a thread can only be told."""
        if run.stop is not None:
            return
        run.stop = Stop.TIMEOUT
        self._metrics.timed_out += 1
        log.error("job timed out after %g s", time.monotonic() - run.started_at, extra=run.log_fields)
        if run.task is None:
            self.abandon(run)
        else:
            self._stop(run, time.monotonic() + CANCEL_GRACE_S)

    def _stop(self, run: Run, grace_until: float) -> None:
        self._cancel(run)
        run.abandon_at = grace_until
        self.watchdog.expect(run.abandon_at)

    def _cancel(self, run: Run) -> None:
        """Not before its first step: a task that was never entered could not say that it ended."""
        task = run.task
        if task is not None:
            self._loop.call_soon(task.cancel)

    def abandon(self, run: Run) -> None:
        """Report without waiting for the handler, which does not end; it keeps its slot."""
        if run.phase is not Phase.RUNNING:
            return
        run.phase = Phase.ENDED
        run.abandon_at = None
        run.loss.set("the worker did not wait any longer")
        self._report(run, timed_out(run, 0.0))
        self._leave(run)

    # Handlers that do not return ---------------------------------------------------------------------------------

    def _leave(self, run: Run) -> None:
        """Its job is over here, and its handler has not returned (yet)."""
        run.left_at = time.monotonic()
        self._left[run.lease.job.id] = run
        self._metrics.stuck = len(self._left)
        self.watchdog.expect(run.left_at + pacing.STUCK_AFTER_S)

    def _returned(self, run: Run) -> None:
        del self._left[run.lease.job.id]
        self._metrics.stuck = len(self._left)
        if run.is_stuck:
            log.warning("the handler has returned: its slot is free again", extra=run.log_fields)

    def give_up(self, run: Run) -> None:
        """It has not returned for so long that its slot counts as stuck."""
        run.is_stuck = True
        self._metrics.stuck_runs += 1
        stuck = sum(it.is_stuck for it in self.active.values())
        log.error(
            "the handler has not returned since its job %s: its slot is stuck, %d of %d slots are",
            "timed out" if run.stop is Stop.TIMEOUT else "was lost",
            stuck,
            self.concurrency,
            extra=run.log_fields,
        )
        self._note_emptied()
        self._on_room()
        if stuck == self.concurrency:
            self._on_stuck()

    # What has no slot --------------------------------------------------------------------------------------------

    def take_no_more(self) -> None:
        """What has no slot by now gets none."""
        self._takes_no_more = True
        self._mismatches.decide_at_once()
        self.give_back_queued()

    def give_back_queued(self) -> None:
        """What has no slot is returned without a penalty, for others to run."""
        while self.queued:
            run = self.queued.popleft()
            run.phase = Phase.ENDED
            self._reporter.tell_end(run, given_back(run))
        self._metrics.queued = 0
        self._on_room()

    def _lost_while_queued(self, run: Run) -> None:
        """Its lease ran out before a slot was free (the loop was blocked, the process stopped)."""
        run.phase = Phase.ENDED
        self._metrics.lost += 1
        log.warning("lease lost while the job waited for a slot", extra=run.log_fields)
        self._reporter.tell_end(run, given_back(run))

    # Shutdown ----------------------------------------------------------------------------------------------------

    def stop_all(self, grace_until: float) -> None:
        """Stop every handler; each is given back when it ends, or after the grace."""
        for run in list(self.active.values()):
            if run.stop is None:
                run.stop = Stop.SHUTDOWN
                if run.task is None:
                    run.loss.set("the worker is shutting down")
                self._stop(run, grace_until)

    async def emptied(self) -> None:
        """Wait until no handler is running but those that are stuck."""
        while not all(it.is_stuck for it in self.active.values()):
            self._emptied = self._loop.create_future()
            await self._emptied

    def abandon_all(self) -> None:
        for run in list(self.active.values()):
            self.abandon(run)

    def close(self) -> None:
        self.watchdog.close()
        self._threads.close()


def _is_cut_short(report: Report) -> bool:
    """A handler that was told to stop and raised: not a failure of the job, unless it said so."""
    return isinstance(report, c.NackReport) and not report.is_permanent and report.delay_us is None
