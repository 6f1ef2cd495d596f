"""Runs jobs: from the claim's reply to a slot, from the slot to the handler, from the handler's end to its report.

All of it on the event loop. A slot is free again when its handler has really ended: a thread that outlives its timeout
or its lease keeps its slot.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from leasemill.api.lease_loss import NOT_EXTENDED
from leasemill.api.observer import Observer
from leasemill.errors import LeasemillError, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, AbortReason
from leasemill.worker import pacing
from leasemill.worker.async_calls import AsyncCalls
from leasemill.worker.coroutines import new_task
from leasemill.worker.handler import Ended, Report
from leasemill.worker.heartbeat import Heartbeat
from leasemill.worker.hook_calls import Stage
from leasemill.worker.hooks import WorkerHooks
from leasemill.worker.policies import is_limited
from leasemill.worker.processes.pool import HandlerProcesses
from leasemill.worker.reporter import Reporter
from leasemill.worker.run import Phase, Run
from leasemill.worker.settings import Settings
from leasemill.worker.shutdown import Shutdown
from leasemill.worker.slots import Slots
from leasemill.worker.stalls import Stalls
from leasemill.worker.threads import HandlerThreads
from leasemill.worker.unmatched import UnmatchedJobs
from leasemill.worker.watchdog import Watchdog

log = logging.getLogger("leasemill.worker")

UNFINISHED: Final = frozenset({AbortReason.EXPIRED, AbortReason.DIED})


class Runner:
    """Runs leases in slots."""

    def __init__(
        self,
        settings: Settings,
        slots: Slots,
        reporter: Reporter,
        heartbeat: Heartbeat,
        stalls: Stalls,
        hooks: WorkerHooks,
        shutdown: Shutdown,
        *,
        process_kinds: Collection[str],
        state: Any,
        on_room: Callable[[], None],
    ) -> None:
        self._store = settings.app.store
        self._jobs = settings.app.handlers
        self._metrics = settings.metrics
        self._observers = settings.observers
        self._notify_started = self._observers.notifier(Observer.run_started)
        self._notify_ended = self._observers.notifier(Observer.run_ended)
        self._context = contextvars.copy_context()
        self.slots = slots
        self._reporter = reporter
        self._heartbeat = heartbeat
        self._stalls = stalls
        self._hooks = hooks
        self._shutdown = shutdown
        self._state = state
        """What the app's lifespan yielded."""
        self._on_room = on_room
        self.watchdog = Watchdog(
            settings,
            slots,
            reporter,
            stalls,
            hooks,
            on_room=on_room,
            on_stuck=partial(shutdown.end_stuck, slots.size),
        )
        self.unmatched = UnmatchedJobs(self._store, settings.metrics, reporter, settings.mismatch_s)
        self._takes_no_more = False
        self.is_quiet = False
        self._calls = AsyncCalls(self._ended_together)
        self._threads = HandlerThreads(settings.worker_id, slots.size, self._ended_together)
        self._processes = HandlerProcesses(
            settings.worker_id,
            settings.app,
            self._store,
            kinds=process_kinds,
            stopping=shutdown.stopping,
            on_begun=lambda run: self.watchdog.expect(run.started_at + pacing.LATE_START_S),
            on_end=self.ended,
            on_not_begun=self.not_begun,
            on_failure=shutdown.fail,
        )

    def announce_stop(self) -> None:
        """`ctx.stopping` is set; handlers in processes of their own are notified. From any thread."""
        self._processes.announce_stop()

    async def prepare(self) -> None:
        """Raises Refused if handlers cannot run."""
        await self._processes.prepare()

    def close(self) -> None:
        self.watchdog.close()
        self._threads.close()
        self._processes.close()

    async def closed(self, until: float) -> None:
        """Wait for the end of processes, until then on the monotonic clock."""
        await self._processes.closed(until)

    def take_no_more(self) -> None:
        """What has no slot by now gets none."""
        self._takes_no_more = True
        self.unmatched.decide_at_once()
        self.watchdog.give_back_queued()

    def rest(self) -> None:
        """O13: claim nothing, give back what has no slot, and let run what runs, until `resume`."""
        self.is_quiet = True
        self.watchdog.give_back_queued()

    def resume(self) -> None:
        self.is_quiet = False

    @property
    def has_nothing_left(self) -> bool:
        unreported = self._reporter.unreported + self.unmatched.undecided
        return unreported == 0 and self.slots.is_idle and self._hooks.is_idle

    @property
    def set_aside(self) -> int:
        """How many jobs fewer to hold: some are being looked up, and hooks may not keep up."""
        return self.unmatched.undecided + self._hooks.overdue

    def free_slots(self) -> int:
        slots = self.slots
        return pacing.free_slots(slots.size, len(slots.active), len(slots.queued))

    # From the claim to the handler -------------------------------------------------------------------------------

    def accept(self, leases: Sequence[c.Lease], sent_at: float) -> None:
        """Take over what a claim, first sent at `sent_at`, was granted."""
        self.slots.prefetch.answered(sent_at)
        queued = self.slots.queued
        for lease in sorted(leases, key=is_limited, reverse=True):  # T8: they were claimed for slots that are free
            run = Run(lease, self._jobs.get(lease.job.kind), sent_at)
            if run.job is None:
                self.unmatched.take(run, f"no handler for kind {lease.job.kind!r}")
            elif lease.job.id in self.slots.left:
                self._put_off(run)
            else:
                queued.append(run)
        self._metrics.claimed += len(leases)
        if self._takes_no_more or self.is_quiet:
            self.watchdog.give_back_queued()
            return
        self._fill()
        if queued:
            self.watchdog.expect(sent_at + pacing.patience_s(min(it.lease_s for it in queued)))
            self.watchdog.expect(time.monotonic() + pacing.LOOK_AHEAD_S)

    def _put_off(self, run: Run) -> None:
        """An earlier run of this job goes on in this worker: two at a time are one too many."""
        log.warning(
            "job given back: its attempt %d is still running in this worker",
            self.slots.left[run.lease.job.id].lease.attempt,
            extra=run.log_fields,
        )
        self._reporter.give_back(run, pacing.put_off_us(run.lease.attempt))

    def _fill(self) -> None:
        """Give free slots to the jobs that have waited longest.

        Nothing is awaited here, so a job that leaves the queue has a slot, or is given back, before anything else
        happens. A job may be unfit by now: its lease may have run out while the loop was blocked, or its arguments may
        not match this code. Those take no slot, and the next one is looked at.
        """
        queued, active, size = self.slots.queued, self.slots.active, self.slots.size
        now = time.monotonic()
        while queued and len(active) < size:
            run = queued.popleft()
            if now >= run.loss.held_until:
                self._lost_while_queued(run)
                continue
            why = run.mismatch()
            if why is not None:
                self.unmatched.take(run, why)
                continue
            lease = run.lease
            active[lease.token] = run  # from here on the heartbeat's thread sees it
            if pacing.starts_durably(lease.attempt, lease.retries, lease.expirations):
                self._hold(run)
                run.task = new_task(self._start_durably(run))
            else:
                self._begin(run, now)
        self.slots.changed()

    def _lost_while_queued(self, run: Run) -> None:
        """Its lease expired before a slot was free (the loop was blocked, the process stopped)."""
        self._metrics.lost += 1
        self._observers.notify(Observer.lost, run.lease, "expired while the job waited for a slot")
        log.warning("lease lost while the job waited for a slot", extra=run.log_fields)
        self._reporter.give_back(run)

    def _hold(self, run: Run) -> None:
        """Keep its lease while something comes before its handler."""
        run.phase = Phase.RUNNING
        self._heartbeat.expect(run)
        self.watchdog.expect(run.loss.held_until)

    def _begin(self, run: Run, now: float) -> None:
        run.is_begun = True
        stage = self._hooks.starting(run)
        if stage is None:
            self._begin_handler(run, now)
            return
        self._hold(run)
        run.task = new_task(self._begin_hooked(run, stage), self._context.copy())

    async def _begin_hooked(self, run: Run, stage: Stage) -> None:
        """Call its hooks first. Their time is not the handler's, and a run that is stopped meanwhile is given back."""
        try:
            await self._hooks.call_start(run, stage)
        except asyncio.CancelledError:
            self.ended(run, c.ReleaseReport(run.lease.job.id, run.lease.token))
            return
        run.task = None
        if run.phase is Phase.RUNNING and run.stop is None:
            self._begin_handler(run, time.monotonic())
        else:
            self.ended(run, c.ReleaseReport(run.lease.job.id, run.lease.token))

    def _begin_handler(self, run: Run, now: float) -> None:
        run.begin(self._store, self._state, now, self._shutdown.stopping)
        self._heartbeat.expect(run)
        self.watchdog.expect(now + pacing.LATE_START_S)
        self._metrics.started += 1
        if self._notify_started is not None:
            self._notify_started(run.lease, run.waited_s)
        jitter = self._store.entropy.jitter()
        if run.lease.job.kind in self._processes.kinds:
            run.task = None
            self._processes.start(run, jitter)
        elif run.handler.is_async:
            self._stalls.watch()
            run.stalled_before_s = self._stalls.total_s
            self._calls.start(run, jitter)
        else:
            run.task = None
            self._threads.start(run, jitter)

    # After a run that did not end by reporting -------------------------------------------------------------------

    async def _start_durably(self, run: Run) -> None:
        """F4: an earlier run did not end by reporting, so this start is on record before the handler runs."""
        lease = run.lease
        run.is_start_reported = True
        try:
            (outcome,) = await self._reporter.repeat(c.Start([c.StartReport(lease.job.id, lease.token)]))
        except asyncio.CancelledError:
            self.ended(run, c.ReleaseReport(lease.job.id, lease.token))
            return
        except LeasemillError as error:
            self._free(run)
            self._shutdown.fail(error)
            return
        run.task = None
        if isinstance(outcome, c.Lost):
            self._metrics.refused += 1
            self.watchdog.lose(run, outcome.reason)
            self._free(run)
            return
        self._begin(run, time.monotonic())
        await self._note_takeover(run)

    async def _note_takeover(self, run: Run) -> None:
        """Log whose lease ended: that may have been recorded by a claim, which logs nothing, or by another worker."""
        lease = run.lease
        try:
            job = await self._store.ajob(lease.job.id)
        except Unavailable:
            return  # only a note is lost
        for execution in () if job is None else job.executions:
            if execution.attempt == lease.attempt - 1 and execution.reason in UNFINISHED:
                has_died = execution.reason is AbortReason.DIED
                ended_at = (has_died and execution.finished_at) or execution.expires_at
                waited_s = max(0, lease.leased_at - ended_at) / SECOND
                self._metrics.taken_over += 1
                self._metrics.taken_over_seconds += waited_s
                self._metrics.taken_over_seconds_max = max(self._metrics.taken_over_seconds_max, waited_s)
                log.warning(
                    "job runs again %.1f s after the lease of worker %s %s",
                    waited_s,
                    execution.worker,
                    "ended with its death" if has_died else "expired",
                    extra=run.log_fields,
                )

    # Ends --------------------------------------------------------------------------------------------------------

    def not_begun(self, run: Run) -> None:
        """No process could be started for it: others may be able to."""
        if run.phase is Phase.RUNNING:
            self._reporter.give_back(run, pacing.put_off_us(run.lease.attempt))
        self._free(run)

    def ended(self, run: Run, report: Report | None) -> None:
        """The handler has really ended, or (None) its process was killed; the slot is free."""
        self._end(run, report)
        self._refill()

    def _ended_together(self, ends: Sequence[Ended]) -> None:
        for run, report in ends:
            self._end(run, report)
        self._refill()

    def _end(self, run: Run, report: Report | None) -> None:
        ended_at = run.ended_at
        if run.phase is Phase.RUNNING:
            if run.stop is None and run.loss.reason is not None and not run.has_ended_in_time:
                # Its own commit was refused, the heartbeat knew, or the handler saw that time had ended its lease.
                run.is_given_back_at_end = run.loss.reason == NOT_EXTENDED
                self.watchdog.note_loss(run, run.loss.reason)
            self._reporter.report_end(run, report)
        else:
            ended_at = 0.0  # it was reported earlier
            if run.is_given_back_at_end:
                self._reporter.give_back(run)
        if run.started_at:
            took_s = (ended_at or time.monotonic()) - run.started_at
            self._metrics.run_seconds += took_s
            if self._notify_ended is not None:
                self._notify_ended(run.lease, took_s)
            self.slots.prefetch.ended_count += 1
        self._leave_slot(run)

    def _free(self, run: Run) -> None:
        self._leave_slot(run)
        self._refill()

    def _leave_slot(self, run: Run) -> None:
        run.phase = Phase.ENDED
        run.task = None
        del self.slots.active[run.lease.token]
        if run.left_at is not None:
            del self.slots.left[run.lease.job.id]
            if run.is_stuck:
                log.warning("handler has returned: its slot is free again", extra=run.log_fields)

    def _refill(self) -> None:
        if self.slots.queued:
            self._fill()
        else:
            self.slots.changed()
        self._on_room()
