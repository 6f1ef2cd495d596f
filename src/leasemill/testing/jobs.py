"""`Jobs`: an app bound to a store of a test's own, whose clock the test moves. What the fixture `leasemill` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from leasemill.api.app import App
from leasemill.api.handle import JobHandle
from leasemill.api.job import JobType
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.model import REDRIVEN_STATES, UNENDED_STATES, Job, JobState
from leasemill.operator.listing import all_jobs
from leasemill.testing.clock import ManualClock
from leasemill.testing.crash import CrashPoint, crash_at
from leasemill.testing.drain import adrain, drain
from leasemill.worker.metrics import Metrics
from leasemill.worker.ticker import Ticker


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job that ended without success: its retries are used up, or it was quarantined."""

    id: str
    kind: str
    arguments: dict[str, Any]
    state: JobState
    error: str | None
    """The exception and its causes, in one line."""
    details: str | None
    """The error as it is recorded, with the deepest frames of its traceback."""


class Jobs:
    """The jobs of an app inside a test."""

    def __init__(self, app: App, clock: ManualClock, when_nothing_ran: Callable[[], None] = lambda: None) -> None:
        self.app = app
        self._when_nothing_ran = when_nothing_ran
        self.clock = clock
        """Moves by `clock.advance(s=60)` alone; `advance` also runs what becomes due."""

    # Running them

    def drain(self) -> Metrics:
        """Run what is due now, and what that makes due; returns a worker's counters."""
        return self._ran(drain(self.app))

    async def adrain(self) -> Metrics:
        """`drain` in async code."""
        return self._ran(await adrain(self.app))

    def finish(self) -> Metrics:
        """Run everything: the clock moves on to retries and delayed jobs, until nothing waits (ticks do not count)."""
        return self._ran(drain(self.app, self.clock))

    async def afinish(self) -> Metrics:
        """`finish` in async code."""
        return self._ran(await adrain(self.app, self.clock))

    def advance(self, by: timedelta | None = None, *, s: float = 0) -> Metrics:
        """Let time pass: retries, delayed jobs and ticks of schedules run when they are due on the way."""
        return self._ran(drain(self.app, self.clock, until=_duration(by, s)))

    async def aadvance(self, by: timedelta | None = None, *, s: float = 0) -> Metrics:
        """`advance` in async code."""
        return self._ran(await adrain(self.app, self.clock, until=_duration(by, s)))

    def _ran(self, counted: Metrics) -> Metrics:
        if not counted.started:
            self._when_nothing_ran()
        return counted

    def fire(self, schedule: str) -> JobHandle[Any]:
        """Enqueue the job of a schedule, whenever it is due."""
        store = self.app.store
        if store.run(c.GetSchedule(schedule)) is None:
            Ticker("a test", self.app.schedules, store, Metrics()).run()  # no worker has set what is declared yet
        return self.app.schedules.fire(schedule, by="a test", reason="fired by a test")

    def crash_at(self, point: CrashPoint, *, of: JobType[..., Any] | str | None = None) -> AbstractContextManager[None]:
        """Inside the block the first run that reaches `point` dies there; see `leasemill.testing.crash.crash_at`."""
        return crash_at(self.app, self.clock, point, of=of)

    # Looking at them

    def enqueued(self, job: JobType[..., Any] | str | None = None) -> list[dict[str, Any]]:
        """The arguments of jobs that wait, also of those that are not due, in the order of their enqueue."""
        kind = job.kind if isinstance(job, JobType) else job
        if kind is not None and kind not in self.app.handlers:
            known = ", ".join(sorted(self.app.jobs)) or "none"
            raise Invalid(f"the app has no job {kind!r}; its jobs are: {known}")
        return [self._arguments(one) for one in self._all(frozenset({JobState.READY}), kind)]

    @property
    def failures(self) -> list[FailedJob]:
        """The jobs that ended without success, in the order of their enqueue."""
        return [self._failed(one) for one in self._all(REDRIVEN_STATES)]

    @property
    def unfinished(self) -> list[str]:
        """The kinds of jobs that wait, or whose lease has not ended."""
        return [one.spec.kind for one in self._all(UNENDED_STATES)]

    def _all(self, states: frozenset[JobState], kind: str | None = None) -> Iterator[Job]:
        return all_jobs(self.app.store, c.JobFilter(states=states, kind=kind))

    def _failed(self, job: Job) -> FailedJob:
        details = job.executions[-1].error if job.executions else None
        error = None if details is None else details.partition("\n")[0]
        return FailedJob(job.spec.id, job.spec.kind, self._arguments(job), job.state, error, details)

    def _arguments(self, job: Job) -> dict[str, Any]:
        """Return the arguments by name and with defaults, as the handler gets them; for an unknown kind, as stored."""
        declared = self.app.handlers.get(job.spec.kind)
        if declared is None:
            plain: dict[str, Any] = msgspec.json.decode(job.spec.payload)
            return plain
        positional, by_name = declared.arguments.decode(job.spec.payload)
        return {**dict(zip(declared.arguments.names, positional, strict=False)), **by_name}


def _duration(by: timedelta | None, s: float) -> timedelta:
    duration = (by or timedelta()) + timedelta(seconds=s)
    if duration <= timedelta():
        raise Invalid("advance needs a duration: write advance(s=60), or advance(timedelta(hours=1))")
    return duration
