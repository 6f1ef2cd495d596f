"""Stops jobs: at their timeout, when their lease is lost, when they wait too long for a slot, at a shutdown.

One timer serves everything that becomes due while jobs run; no job has a timer of its own. An async handler is
cancelled, a thread can only be asked to stop (`ctx.lost`), a process is stopped and then killed. All of it on the event
loop. What must never happen: a job that is released while its handler runs. If the handler does not end, the lease ends
by time, or with this process (L10). Only a timeout is reported without the handler, after a grace: the job has failed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final

from leasemill.api.lease_loss import NOT_EXTENDED, SHUTTING_DOWN, TIMED_OUT
from leasemill.api.observer import Observer
from leasemill.worker import pacing
from leasemill.worker.hooks import WorkerHooks
from leasemill.worker.reporter import Reporter
from leasemill.worker.run import Phase, Run, Stop
from leasemill.worker.settings import Settings
from leasemill.worker.slots import Slots
from leasemill.worker.stalls import Stalls

log = logging.getLogger("leasemill.worker")

CANCEL_GRACE_S: Final = 5.0
"""How long a handler may take to clean up after its timeout before its job is reported without it."""


class Watchdog:
    """Looks after jobs when something is due, and at no other time."""

    def __init__(
        self,
        settings: Settings,
        slots: Slots,
        reporter: Reporter,
        stalls: Stalls,
        hooks: WorkerHooks,
        *,
        on_room: Callable[[], None],
        on_stuck: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._metrics = settings.metrics
        self._observers = settings.observers
        self._reporter = reporter
        self._stalls = stalls
        self._hooks = hooks
        self._on_room = on_room
        self._on_stuck = on_stuck
        """No slot is left that could run anything."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # What is due -------------------------------------------------------------------------------------------------

    def expect(self, at: float) -> None:
        """Something is due at this monotonic time."""
        if at < self._wakes_at:
            self._wakes_at = at
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(max(0.0, at - time.monotonic()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._wakes_at = math.inf
        next_at = self._look(time.monotonic())
        if next_at < math.inf:
            self.expect(next_at)

    def _look(self, now: float) -> float:
        """Do what is due; returns when something is due next.

        All slots are looked at whenever the one timer fires: there are few of them, and a timer for each job would be
        set and cancelled for every job that ends in time, which is nearly all of them. It goes through a copy, because
        what it does may end runs. The heartbeat's thread may extend a lease meanwhile, which only makes it longer: a
        `held_until` that has passed is looked at again in `lose`.
        """
        next_at = math.inf
        for run in self._slots.running():
            if run.kill_at is not None:
                next_at = min(next_at, self._kill_due(run, run.kill_at, now))
            if run.phase is Phase.RUNNING:
                next_at = min(next_at, self._look_at(run, now))
            elif run.left_at is not None and not run.is_stuck:
                stuck_at = run.left_at + pacing.STUCK_AFTER_S
                if now < stuck_at:
                    next_at = min(next_at, stuck_at)
                else:
                    self._mark_stuck(run)
        if self._slots.queued:
            next_at = min(next_at, self._look_at_queued(now))
        return next_at

    def _look_at(self, run: Run, now: float) -> float:
        if now >= run.loss.held_until:
            self.lose(run, None)
            return math.inf
        if run.stop is not None:  # stopped before: what is left is to wait for its handler, or to give up on it
            if run.abandon_at is not None and now >= run.abandon_at:
                self._abandon(run)
                return math.inf
            return min(run.abandon_at or math.inf, run.loss.held_until)
        if run.has_ended_in_time:
            return math.inf  # its report is on its way
        if now >= run.timeout_at and not self._is_excused(run):
            self._time_out(run)
            return run.loss.held_until  # the heartbeat does not extend it for ever: its report must not come too late
        next_at = min(run.timeout_at, run.loss.held_until)
        if run.started_at and not run.is_start_reported and not run.is_in_line:
            start_at = run.started_at + pacing.LATE_START_S
            if now >= start_at:
                self._reporter.report_start(run)
            else:
                next_at = min(next_at, start_at)
        return next_at

    def _look_at_queued(self, now: float) -> float:
        """C9: what has waited long enough for a slot is given back, and what would have to wait too long."""
        first = self._slots.queued[0]
        give_back_at = first.claimed_at + pacing.patience_s(first.lease_s)
        if now >= give_back_at:
            self.give_back_queued()
            return math.inf
        if too_many := self._slots.prefetch.too_many(len(self._slots.queued)):
            self.give_back_queued(too_many)
        return min(give_back_at, now + pacing.LOOK_AHEAD_S) if self._slots.queued else math.inf

    def give_back_queued(self, most: int | None = None) -> None:
        """Give back jobs that have no slot, without a penalty, for others to run: all, or the last `most`."""
        queued = self._slots.queued
        for _ in range(len(queued) if most is None else most):
            self._reporter.give_back(queued.pop())
        self._slots.changed()
        self._on_room()

    # Lost leases -------------------------------------------------------------------------------------------------

    def lose(self, run: Run, reason: str | None) -> None:
        """The lease is not ours any more, as the store reports, or (None) because it could not be extended in time."""
        if run.phase is not Phase.RUNNING or run.stop is Stop.LOST:
            return
        if reason is None and (time.monotonic() < run.loss.held_until or run.has_ended_in_time):
            return  # extended in the meantime, or its report is on its way
        if reason is None and run.stop is Stop.TIMEOUT:
            self._abandon(run)  # what is left of the lease is for its report
            return
        run.loss.set(reason or NOT_EXTENDED)
        self.note_loss(run, reason or NOT_EXTENDED)
        run.phase = Phase.ENDED
        # The store did not answer. Releasing the job when the handler has ended frees it at once, or leaves a record
        # that it came too late. Not before: the store may answer again, and another worker would run the job beside it.
        run.is_given_back_at_end = reason is None
        if run.process is not None:
            self._end_process(run, run.loss.reason or "", pacing.kill_at(reason, time.monotonic(), run.ends_at))
        self._leave(run)
        self._cancel(run)

    def note_loss(self, run: Run, reason: str) -> None:
        run.stop = Stop.LOST
        self._metrics.lost += 1
        self._observers.notify(Observer.lost, run.lease, reason)
        self._hooks.lost(run, reason)
        log.warning("lease lost (%s): the handler's result is dropped", reason, extra=run.log_fields)

    # Timeouts ----------------------------------------------------------------------------------------------------

    def _is_excused(self, run: Run) -> bool:
        """Time in which others blocked the event loop is not an async handler's: it gets as much more."""
        if run.task is None:
            return False  # a thread ran on meanwhile
        self._stalls.alive()
        excused_s = self._stalls.excused_s(run)
        if excused_s <= 0:
            return False
        run.excuse(excused_s)
        return time.monotonic() < run.timeout_at

    def _time_out(self, run: Run) -> None:
        run.stop = Stop.TIMEOUT
        self._metrics.timed_out += 1
        self._observers.notify(Observer.timed_out, run.lease)
        log.error("job timed out after %g s", time.monotonic() - run.started_at, extra=run.log_fields)
        run.loss.set(TIMED_OUT)
        if run.process is not None:
            self._end_process(run, TIMED_OUT, time.monotonic() + pacing.KILL_GRACE_S)
        else:
            self._stop(run, time.monotonic() + CANCEL_GRACE_S)

    # Shutdown ----------------------------------------------------------------------------------------------------

    def stop_all(self, grace_until: float) -> None:
        """Stop every handler; the job of each is released when it has ended."""
        for run in self._slots.running():
            if run.stop is None and not run.has_ended_in_time:
                run.stop = Stop.SHUTDOWN
                run.loss.set(SHUTTING_DOWN)
                if run.process is not None:
                    self._end_process(run, SHUTTING_DOWN, grace_until)
                else:
                    self._cancel(run)

    def abandon_all(self) -> None:
        """Wait for no handler any longer."""
        for run in self._slots.running():
            if run.process is None:
                self._abandon(run)
            else:
                run.process.kill(run)

    # Handlers in processes of their own ----------------------------------------------------------------------------

    def _end_process(self, run: Run, reason: str, kill_at: float) -> None:
        """Stop the handler now, its process later. A run whose process was stopped before is killed no later."""
        assert run.process is not None
        run.process.stop(run, reason)
        run.kill_at = kill_at if run.kill_at is None else min(kill_at, run.kill_at)
        self.expect(run.kill_at)

    def _kill_due(self, run: Run, kill_at: float, now: float) -> float:
        if now < kill_at:
            return kill_at
        run.kill_at = None
        if run.process is not None:
            log.warning("the handler has not ended: its process %s is killed", run.process.pid, extra=run.log_fields)
            run.process.kill(run)
        return math.inf

    # Handlers that do not return ---------------------------------------------------------------------------------

    def _stop(self, run: Run, grace_until: float) -> None:
        self._cancel(run)
        run.abandon_at = grace_until
        self.expect(grace_until)

    def _cancel(self, run: Run) -> None:
        """Not before its first step: a task that was never entered could not report that it ended."""
        if run.task is not None:
            self._loop.call_soon(_cancel_task, run, run.task)

    def _abandon(self, run: Run) -> None:
        """Do not wait for the handler, which does not end; it keeps its slot."""
        if run.phase is not Phase.RUNNING or run.has_ended_in_time:
            return
        run.phase = Phase.ENDED
        run.abandon_at = None
        if run.stop is Stop.TIMEOUT:
            self._reporter.report_end(run, None)
        else:
            run.is_given_back_at_end = True
            log.warning(
                "handler has not ended: its job is not released; another worker gets it when the supervisor or "
                "a worker of this machine sees that this process has ended, or when its lease has expired",
                extra=run.log_fields,
            )
        self._leave(run)

    def _leave(self, run: Run) -> None:
        """Its job is over here, and its handler has not returned (yet)."""
        run.left_at = time.monotonic()
        self._slots.left[run.lease.job.id] = run
        self._slots.changed()
        self.expect(run.left_at + pacing.STUCK_AFTER_S)

    def _mark_stuck(self, run: Run) -> None:
        """It has not returned for so long that its slot counts as stuck."""
        run.is_stuck = True
        self._metrics.stuck_runs += 1
        stuck = self._slots.stuck
        log.error(
            "handler has not returned since its job %s: its slot is stuck (%d of %d slots)",
            "timed out" if run.stop is Stop.TIMEOUT else "was lost",
            stuck,
            self._slots.size,
            extra=run.log_fields,
        )
        self._slots.changed()
        self._on_room()
        if stuck == self._slots.size:
            self._on_stuck()


def _cancel_task(run: Run, task: asyncio.Task[None]) -> None:
    """A run that has ended has no task, and one in line is not called: the task may run others."""
    if run.task is task and not run.is_in_line:
        task.cancel()
