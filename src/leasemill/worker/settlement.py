"""What becomes of runs when the store has answered their reports: counted, logged, passed to hooks and observers.

All of it on the event loop. What must never happen here: an error of a hook or an observer that reaches the reporter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from leasemill.api.observer import End, Observer, Settled
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState, Verb
from leasemill.worker.hooks import WorkerHooks
from leasemill.worker.joblog import JobLog
from leasemill.worker.run import Run, Stop
from leasemill.worker.settings import Settings

log = logging.getLogger("leasemill.worker")

ReportT = TypeVar("ReportT")
OutcomeT = TypeVar("OutcomeT")

Fate: TypeAlias = tuple[End, str | None]
"""How the store settled a run, and the error if there is one."""
SUCCEEDED: Final[Fate] = ("succeeded", None)


class Settlement:
    """Takes note of the store's outcomes, one for each report of a batch."""

    def __init__(self, settings: Settings, hooks: WorkerHooks, on_claimable: Callable[[], None]) -> None:
        self._metrics = settings.metrics
        self._notify_settled = settings.observers.notifier(Observer.settled)
        self._hooks = hooks
        self._joblog = JobLog(settings.worker_id)
        self._on_claimable = on_claimable
        """A report may have made a job claimable, now or soon."""

    def close(self) -> None:
        self._joblog.close()

    def settle(
        self,
        items: Sequence[tuple[Run, ReportT]],
        outcomes: Sequence[OutcomeT | c.Lost],
        took_s: float,
        answered: Callable[[Run, ReportT, OutcomeT], Fate | None],
    ) -> None:
        """`answered`: which of the methods below takes note of an outcome that is not a refusal."""
        notify, settled = self._notify_settled, list[Settled]()
        for (run, report), outcome in zip(items, outcomes, strict=True):
            fate = self._refused(run, outcome) if isinstance(outcome, c.Lost) else answered(run, report, outcome)
            if fate is not None and notify is not None:
                settled.append(Settled(run.lease, *fate))
        if notify is not None and settled:
            notify(settled, took_s)

    def started(self, run: Run, report: c.StartReport, outcome: c.Started) -> None:
        """A start that was recorded changes nothing here."""

    def acked(self, run: Run, report: c.AckReport, outcome: c.Acked) -> Fate:
        """The ack went without a claim, so the next job of its lane, or of its limits, is still to be claimed."""
        rules = run.lease.job.rules
        if outcome.next_in_lane is not None or (rules is not None and rules.limits):
            self._on_claimable()
        return self.acked_and_claimed(run, report, outcome)

    def acked_and_claimed(self, run: Run, report: c.AckReport, outcome: c.Acked) -> Fate:
        """C8: what the ack made claimable is in the answer of the claim that went along."""
        self._metrics.succeeded += 1
        self._joblog.succeeded(run)
        self._hooks.succeeded(run)
        return SUCCEEDED

    def nacked(self, run: Run, report: c.NackReport, outcome: c.Nacked) -> Fate:
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

    def released(self, run: Run, report: c.ReleaseReport, outcome: c.Released) -> Fate:
        self._metrics.released += 1
        if run.started_at and run.stop in (None, Stop.SHUTDOWN):
            self._joblog.released(run, report, outcome)
        self._on_claimable()
        if outcome.state is not JobState.SUCCEEDED:
            return "released", report.error
        self._hooks.succeeded(run, report.error)
        return "succeeded", report.error

    def died(self, run: Run, report: c.DeathReport, outcome: c.Died) -> Fate:
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

    def _refused(self, run: Run, lost: c.Lost) -> Fate | None:
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
