"""The hooks of an app and of its jobs, in a worker: which run when, and what they are given.

They run here, in the worker's process, also for handlers in processes of their own: how the store answered is known
here alone, and a handler's process may be dead. `around` is another matter: it is entered where the handler runs. What
must never happen here: a hook that is called before the store has answered, or work for hooks where there are none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from leasemill.api.app import App
from leasemill.api.hooks import JobEvent, RunHooks
from leasemill.errors import Unavailable
from leasemill.kernel.model import SECOND, Job, JobState
from leasemill.kernel.read.filter import last_error
from leasemill.operator.fingerprint import QUARANTINED, error_fingerprint, fingerprint, quarantine_fingerprint
from leasemill.store.base import Store
from leasemill.worker.hook_calls import HookCalls, Stage, stage_of
from leasemill.worker.run import Run, Stop

log = logging.getLogger("leasemill.hooks")

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class _Stages(NamedTuple):
    """The hooks of one kind of job; None where there is none."""

    start: Stage | None
    success: Stage | None
    retry: Stage | None
    failure: Stage | None
    lost: Stage | None


class WorkerHooks:
    """What a worker calls when something has become of a run. On the event loop, where nothing says otherwise.

    Hooks that are declared later are not known to it.
    """

    def __init__(
        self, worker_id: str, app: App, store: Store, state: Any, on_progress: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._state = state
        self._by_kind = {kind: _stages(app.hooks, job.own_hooks) for kind, job in app.handlers.items()}
        self._of_app = _stages(app.hooks, RunHooks())
        """The hooks of kinds that the app does not declare."""
        every = [*self._by_kind.values(), self._of_app]
        self.are_there = any(stage is not None for stages in every for stage in stages)
        """Look here first: where there are none, nothing is put together for them."""
        self._has_failure_hooks = any(stages.failure is not None for stages in every)
        self._loop = asyncio.get_running_loop()
        self._calls = HookCalls(worker_id, on_progress)
        self._reading: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        return self._calls.is_idle and not self._reading

    @property
    def overdue(self) -> int:
        """How many jobs fewer to hold, because hooks do not keep up."""
        return self._calls.overdue

    async def finished(self, until: float) -> None:
        """Wait for hooks under way, no longer than until this monotonic time."""
        if self._reading:
            await asyncio.wait(self._reading, timeout=max(0.0, until - time.monotonic()))
        await self._calls.finished(until)

    def close(self) -> None:
        for task in self._reading:
            task.cancel()
        self._calls.close()

    # What has become of a run ------------------------------------------------------------------------------------

    def starting(self, run: Run) -> Stage | None:
        """What is to be called before the handler: with `call_start`."""
        return self._stages(run).start if self.are_there else None

    async def call_start(self, run: Run, stage: Stage) -> None:
        await self._calls.call(self._event(run), stage)

    def succeeded(self, run: Run, error: str | None = None) -> None:
        """`error`: why the handler failed after its commit."""
        if self.are_there and (stage := self._stages(run).success) is not None:
            self._calls.add(self._failed(run, error) if error is not None else self._event(run), stage)

    def retried(self, run: Run, error: str, available_at: int | None) -> None:
        if self.are_there and (stage := self._stages(run).retry) is not None:
            next_at = None if available_at is None else datetime.fromtimestamp(available_at / SECOND, UTC)
            self._calls.add(self._failed(run, error, next_at), stage)

    def failed(self, run: Run, error: str, *, is_dead: bool = False) -> None:
        if self.are_there and (stage := self._stages(run).failure) is not None:
            self._calls.add(self._failed(run, error, is_dead=is_dead), stage)

    def lost(self, run: Run, reason: str) -> None:
        if self.are_there and run.is_begun and (stage := self._stages(run).lost) is not None:
            run.ended_at = run.ended_at or time.monotonic()
            self._calls.add(self._event(run, reason=reason), stage)

    def refused(self, run: Run, reason: str) -> None:
        """The store refused its report, and nobody knew until then that its lease was lost."""
        if run.stop is not Stop.LOST:
            self.lost(run, reason)

    def quarantined(self, job_id: str) -> None:
        """A run of anybody's ended without a report, for the last time. From any thread."""
        if self._has_failure_hooks:
            with suppress(RuntimeError):  # the loop is closed: the worker has ended
                self._loop.call_soon_threadsafe(self._read, job_id)

    def _read(self, job_id: str) -> None:
        task = self._loop.create_task(self._call_quarantined(job_id))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _call_quarantined(self, job_id: str) -> None:
        try:
            job = await self._store.ajob(job_id)
        except Unavailable as error:
            log.warning("job quarantined; on_failure hooks not called: %s", error, extra={"job": job_id})
            return
        if job is None or job.state is not JobState.DEAD or job.spec.kind not in self._by_kind:
            return  # of an app that shares the store
        stage = self._by_kind[job.spec.kind].failure
        if stage is not None:
            self._calls.add(self._dead(job), stage)

    # What they are given -----------------------------------------------------------------------------------------

    def _stages(self, run: Run) -> _Stages:
        return self._by_kind.get(run.lease.job.kind, self._of_app)

    def _event(
        self,
        run: Run,
        *,
        error: str | None = None,
        exception: BaseException | None = None,
        fingerprint: str | None = None,
        next_at: datetime | None = None,
        reason: str | None = None,
    ) -> JobEvent:
        lease = run.lease
        job = lease.job
        seconds = run.ended_at - run.started_at if run.started_at and run.ended_at else None
        return JobEvent(
            job.id,
            job.kind,
            job.queue,
            job.lane,
            lease.attempt,
            lease.worker,
            MappingProxyType(job.headers) if job.headers else NO_HEADERS,
            self._state,
            seconds,
            error,
            exception,
            fingerprint,
            next_at,
            reason,
        )

    def _failed(self, run: Run, error: str, next_at: datetime | None = None, *, is_dead: bool = False) -> JobEvent:
        kind = run.lease.job.kind
        return self._event(
            run,
            error=error,
            exception=None if run.stop is not None else run.raised,
            fingerprint=quarantine_fingerprint(kind) if is_dead else error_fingerprint(kind, error),
            next_at=next_at,
        )

    def _dead(self, job: Job) -> JobEvent:
        spec, latest = job.spec, job.executions[-1]
        return JobEvent(
            spec.id,
            spec.kind,
            spec.queue,
            spec.lane,
            job.attempt,
            latest.worker,
            MappingProxyType(spec.headers or {}),
            self._state,
            error=latest.error or last_error(job) or QUARANTINED,
            fingerprint=fingerprint(job),
        )


def _stages(app: RunHooks, job: RunHooks) -> _Stages:
    return _Stages(
        stage_of(app.on_start + job.on_start),
        stage_of(app.on_success + job.on_success),
        stage_of(app.on_retry + job.on_retry),
        stage_of(app.on_failure + job.on_failure),
        stage_of(app.on_lost + job.on_lost),
    )
