"""`Worker`: puts the parts together, runs them, and takes them down again in the right order.

Claims stop first, then handlers, then reports; leases are kept alive until the last report is told. What must never
happen: an end of the worker because the store is away for a while.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from leasemill import __version__
from leasemill.api.app import App
from leasemill.api.logs import DETAILS
from leasemill.api.policy import Duration, ReaperPreset, is_whole, microseconds, reaper_s
from leasemill.errors import Invalid, Unavailable, WorkerStuck
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, Policy
from leasemill.kernel.validate import check_name, check_text
from leasemill.operator.wording import counted, listed
from leasemill.store.backoff import backoff_s
from leasemill.store.presence import new_worker_id
from leasemill.worker import pacing
from leasemill.worker.fetcher import Fetcher
from leasemill.worker.heartbeat import Heartbeat
from leasemill.worker.housekeeping import Chore, Housekeeping
from leasemill.worker.joblog import JobLog
from leasemill.worker.metrics import Metrics
from leasemill.worker.presence import WorkerPresence, WorkerRecord, encode_record, running_job
from leasemill.worker.reaper import Reaper
from leasemill.worker.reporter import Reporter
from leasemill.worker.run import Phase, Run
from leasemill.worker.runner import Runner
from leasemill.worker.stalls import Stalls
from leasemill.worker.threads import DaemonExecutor
from leasemill.worker.timing import HURRY_S, Shutdown, Times, shutdown_plan
from leasemill.worker.unmatched import MISMATCH_TIMEOUT_S, UnmatchedJobs

log = logging.getLogger("leasemill.worker")

PRESENCE_S: Final = 2.0
POLICIES_S: Final = 5.0
IDENTITY_S: Final = 10.0
QUEUES_READ: Final = 10_000
NAMES_SHOWN: Final = 20
"""Queues and kinds named when the worker starts."""


class Worker:
    """Claims jobs of an app's queues and runs them until it is told to stop."""

    def __init__(
        self,
        app: App,
        queues: Mapping[str, int] | Iterable[str] | None = None,
        *,
        concurrency: int = 10,
        prefetch: int | None = None,
        drain: bool = False,
        heartbeat_interval: Duration | None = None,
        reaper_interval: Duration | ReaperPreset | None = None,
        shutdown_timeout: Duration | None = None,
        mismatch_timeout: Duration | None = None,
        worker_id: str | None = None,
        handle_signals: bool = True,
    ) -> None:
        self.app = app
        self.id = worker_id or new_worker_id()
        self._has_drawn_id = not worker_id
        self.queues = _weights(app, queues)
        self.concurrency = _at_least("concurrency", concurrency, 1)
        self.metrics = Metrics()
        check_text("worker id", self.id)
        self._most_ahead = pacing.PREFETCH_MOST if prefetch is None else _at_least("prefetch", prefetch, 0)
        self._drains = drain
        self._handles_signals = handle_signals
        self._mismatch_s = MISMATCH_TIMEOUT_S
        if mismatch_timeout is not None:
            self._mismatch_s = microseconds("mismatch timeout", mismatch_timeout) / SECOND
        self._kinds: dict[str, Policy] = {kind: job.policy for kind, job in app.handlers.items()}
        self._times = Times(
            self._kinds,
            self.queues,
            heartbeat_s=_seconds("heartbeat interval", heartbeat_interval),
            reaper_s=reaper_s(reaper_interval),
            shutdown_s=_seconds("shutdown timeout", shutdown_timeout),
        )
        self._times.check()
        self._store = app.store
        self._presence = self._store.presence
        self._started_at = time.time()
        self._identity = WorkerPresence(self.id, self._presence, self._started_at)
        self._failure: BaseException | None = None
        self._is_stopping = False
        self._hurries = False
        self._is_stuck = False
        self._plan: Shutdown | None = None
        self.on_stopping: Callable[[float], None] | None = None
        """Called when the worker is asked to stop or ends by itself, with the monotonic time by which it is gone."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_wanted = asyncio.Event()
        self._hurry_wanted = asyncio.Event()
        self._background_gone = asyncio.Event()

    # Its life ----------------------------------------------------------------------------------------------------

    def run_sync(self) -> None:
        """`run`, in an event loop of its own, left behind with whatever handler does not end."""
        loop = asyncio.new_event_loop()
        loop.set_default_executor(DaemonExecutor())
        try:
            loop.run_until_complete(self.run())
        finally:
            loop.run_until_complete(_end_tasks(self._planned().closing_until))
            loop.close()

    async def run(self) -> None:
        """Work until told to stop (`stop`, SIGTERM, SIGINT) or, with `drain`, until nothing is left to do."""
        if self._loop is not None:
            raise Invalid("this worker has run already: make another")
        self._loop = asyncio.get_running_loop()
        signals = self._take_signals()
        try:
            self._identity.begin()
            await self._unless_stopped(self._await_id())
            await self._unless_stopped(self._read_policies())
            self._times.check()
            if not self._is_stopping:
                self._assemble()
                await self._work()
        finally:
            self._identity.end()
            for number in signals:
                self._loop.remove_signal_handler(number)
        if self._failure is not None:
            raise self._failure
        if self._is_stuck:
            raise WorkerStuck(
                f"every slot of worker {self.id} was taken by a handler that had timed out or lost its lease and did "
                "not return: start the worker again, and let handlers look at ctx.lost"
            )

    def stop(self, *, now: bool = False) -> None:
        """Stop: no more claims, running jobs may end, the rest is given back, all of it within the shutdown timeout.

        A second call, or `now`, does not wait for handlers. From any thread.
        """
        self._hurries = now or self._is_stopping
        self._is_stopping = True
        self._planned()
        if self._loop is not None:
            self._from_thread(self._stop_on_loop)

    def _planned(self) -> Shutdown:
        """When which part of the shutdown is over, settled when it begins; a hurry makes it shorter, never longer."""
        plan, now = self._plan, time.monotonic()
        if plan is None:
            limit_s = HURRY_S if self._hurries else self._times.shutdown_s
            plan = shutdown_plan(now, limit_s, waits_for_handlers=not self._hurries)
        elif self._hurries and plan.handlers_until > now:
            plan = shutdown_plan(now, min(HURRY_S, plan.gone_by - now), waits_for_handlers=False)
        else:
            return plan
        self._plan = plan
        if self.on_stopping is not None:
            self.on_stopping(plan.gone_by)
        return plan

    def _stop_on_loop(self) -> None:
        if self._hurries and not self._hurry_wanted.is_set():
            log.warning("stopping now: running jobs are given back", extra={"worker": self.id})
            self._hurry_wanted.set()
        elif not self._stop_wanted.is_set():
            log.info("stopping: waiting for running jobs", extra={"worker": self.id})
        self._stop_wanted.set()

    def _take_signals(self) -> list[int]:
        taken: list[int] = []
        if self._handles_signals and self._loop is not None:
            for number in (signal.SIGTERM, signal.SIGINT):
                try:
                    self._loop.add_signal_handler(number, self.stop)
                except (NotImplementedError, RuntimeError, ValueError):
                    continue  # not the main thread, or a platform without: whoever runs it calls stop()
                taken.append(number)
        return taken

    def _assemble(self) -> None:
        self._mismatches = UnmatchedJobs(self._store, self.metrics, self._mismatch_s)
        self._runner = Runner(
            self.id,
            self._store,
            self.app.handlers,
            self.concurrency,
            self._most_ahead,
            self.metrics,
            self._mismatches,
            on_room=self._room_changed,
            on_failure=self._fail,
            on_stuck=self._end_stuck,
        )
        self._heartbeat = Heartbeat(
            self.id,
            self._store,
            self.metrics,
            running=self._active,
            on_lost=self._lost,
            on_answered=self._extension_answered,
            on_end=self._background_ended,
            interval_s=self._times.heartbeat_s,
        )
        self._reporter = Reporter(
            self.id,
            self._store,
            self.metrics,
            self._heartbeat,
            JobLog(self.id),
            is_busy=lambda: bool(self._runner.queued),
            on_told=self._reports_told,
            on_news=self._news,
        )
        self._stalls = Stalls(self.id, self.metrics, running=self._active, on_end=self._background_ended)
        self._runner.connect(self._reporter, self._heartbeat, self._stalls)
        self._fetcher = Fetcher(
            self.id,
            self._store,
            self._runner,
            self.metrics,
            queues=self.queues,
            kinds=self._kinds,
            drains=self._drains,
            times=self._times,
        )
        self._reaper = Reaper(self.id, self._store, self._presence, self.metrics)
        self._housekeeping = Housekeeping(
            self.id,
            [
                Chore("presence", lambda: PRESENCE_S, self._publish),
                Chore("worker id", lambda: IDENTITY_S, self._identity.check),
                Chore("reaper", lambda: self._times.reaper_s, self._reaper.run),
                Chore("queue policies", lambda: POLICIES_S, self._reread_policies),
            ],
            self.metrics,
            jitter=self._store.entropy.jitter,
            on_end=self._background_ended,
        )

    async def _work(self) -> None:
        self._background_left = 3
        self._heartbeat.start()
        self._stalls.start()
        self._housekeeping.start()
        self._log_start()
        self._name_unfit_handlers()
        fetching = asyncio.create_task(self._fetcher.run())
        stopping = asyncio.create_task(self._stop_wanted.wait())
        try:
            await asyncio.wait({fetching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await self._shut_down(fetching)
        finally:
            stopping.cancel()
            fetching.cancel()
            self._heartbeat.stop()
            self._stalls.stop()
            self._housekeeping.stop(self._withdraw)
            self._reaper.close()
            self._reporter.close()
            self._runner.close()
            await asyncio.wait(
                [asyncio.ensure_future(self._background_gone.wait())],
                timeout=max(0.0, self._planned().closing_until - time.monotonic()),
            )
            log.info("worker stopped", extra={"worker": self.id})

    def _log_start(self) -> None:
        queues, kinds = list(self.queues), sorted(self.app.jobs)
        log.info(
            "worker started: leasemill %s, store %s, queues %s, kinds %s, %s",
            __version__,
            self._store.name,
            listed(queues, NAMES_SHOWN),
            listed(kinds, NAMES_SHOWN) or "none",
            counted(self.concurrency, "slot"),
            extra={
                "worker": self.id,
                DETAILS: {
                    "version": __version__,
                    "store": self._store.name,
                    "queues": queues[:NAMES_SHOWN],
                    "kinds": kinds[:NAMES_SHOWN],
                    "slots": self.concurrency,
                },
            },
        )

    def _name_unfit_handlers(self) -> None:
        """An annotation may name what is defined later; by now it must be. Jobs of that kind do not match this code."""
        for job in self.app.jobs.values():
            try:
                job.arguments.check()
            except Invalid as error:
                fields = {"worker": self.id, "kind": job.kind}
                log.error("jobs of kind %r cannot run here: %s", job.kind, error, extra=fields)

    # Shutdown ----------------------------------------------------------------------------------------------------

    async def _shut_down(self, fetching: asyncio.Task[None]) -> None:
        """Claims first, then handlers, then reports."""
        self._is_stopping = True
        self._runner.take_no_more()
        self._fetcher.stop()
        await self._until(fetching, self._planned().handlers_until)
        if fetching.done() and not fetching.cancelled() and (error := fetching.exception()) is not None:
            self._fail(error)
        if self._failure is None:
            await self._until(asyncio.ensure_future(self._runner.emptied()), self._planned().handlers_until)
        if self._runner.active:
            self._runner.stop_all(self._planned().grace_until)
            if not self._hurries:
                await self._until(asyncio.ensure_future(self._runner.emptied()), self._planned().grace_until)
            self._runner.abandon_all()
        if self._failure is None:
            await self._tell_the_rest()

    async def _tell_the_rest(self) -> None:
        telling = asyncio.ensure_future(self._reporter.drained())
        await asyncio.wait([telling], timeout=max(0.0, self._planned().reports_until - time.monotonic()))
        telling.cancel()
        if self._reporter.unreported:
            left = self._reporter.unreported
            log.warning("%d reports could not be sent: their leases will expire", left, extra={"worker": self.id})

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, but let go of it when the worker is stopped: the store may not answer."""
        doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stop_wanted.wait())
        try:
            await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                doing.result()
        finally:
            stopping.cancel()
            doing.cancel()

    async def _until(self, future: asyncio.Future[Any], deadline: float) -> None:
        """Wait for it, no longer than until the deadline or a second request to stop."""
        hurry: asyncio.Future[Any] = asyncio.ensure_future(self._hurry_wanted.wait())
        left_s = max(0.0, deadline - time.monotonic())
        try:
            await asyncio.wait([future, hurry], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
            if not future.done():
                future.cancel()

    # What the parts tell each other ------------------------------------------------------------------------------

    def _active(self) -> list[Run]:
        return list(self._runner.active.values())

    def _room_changed(self) -> None:
        self._fetcher.room_changed()

    def _news(self) -> None:
        self._fetcher.news()

    def _reports_told(self) -> None:
        if self._reporter.failure is not None:
            self._fail(self._reporter.failure)
        self._fetcher.room_changed()
        if self._drains and self._runner.has_nothing_left:
            self._fetcher.news()

    def _lost(self, run: Run, reason: str | None) -> None:
        if reason is not None:
            run.loss.set(reason)  # at once: the loop may be blocked, a handler in a thread need not wait for it
        self._from_thread(self._runner.lose, run, reason)

    def _extension_answered(self) -> None:
        self._from_thread(self._reporter.flush)

    def _background_ended(self, error: BaseException | None) -> None:
        self._from_thread(self._count_background_end, error)

    def _count_background_end(self, error: BaseException | None) -> None:
        self._background_left -= 1
        if self._background_left == 0:
            self._background_gone.set()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """The store cannot be trusted, or a part of the worker broke: stop, and say why."""
        if self._failure is None:
            self._failure = error
            log.critical("worker stops: %s", error, extra={"worker": self.id})
        self._stop_wanted.set()

    def _end_stuck(self) -> None:
        """Threads cannot be killed, only the process can: it ends, and whoever supervises it starts another."""
        if not self._is_stuck and not self._is_stopping:
            self._is_stuck = True
            log.critical("worker stops: no slot is left, %d are stuck", self.concurrency, extra={"worker": self.id})
            self._stop_wanted.set()

    def _from_thread(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return  # the loop is closed: the worker has ended

    # Now and then ------------------------------------------------------------------------------------------------

    async def _await_id(self) -> None:
        """A second worker of one id is refused before it claims anything. A drawn id is nobody else's."""
        if self._has_drawn_id:
            return
        with suppress(Unavailable, OSError):  # records are soft state: the check is repeated while the worker runs
            await asyncio.get_running_loop().run_in_executor(
                DaemonExecutor(1), self._identity.await_free, lambda: self._is_stopping
            )

    async def _read_policies(self) -> None:
        failures = 0
        while not self._is_stopping:
            try:
                self._times.adopt(_policies(self.queues, await self._store.arun(c.ListQueues(QUEUES_READ))))
                return
            except Unavailable as error:
                failures += 1
                self.metrics.unavailable += 1
                log.warning("the store is unavailable, will retry: %s", error, extra={"worker": self.id})
                wait_s = backoff_s(failures, self._store.entropy.jitter())
                await self._until(asyncio.ensure_future(self._stop_wanted.wait()), time.monotonic() + wait_s)

    def _reread_policies(self) -> None:
        """O4: a queue's policy may change at any time. What was given and does not fit it any more is replaced."""
        times = self._times
        if not times.adopt(_policies(self.queues, self._store.queues(limit=QUEUES_READ))):
            return
        self._heartbeat.set_interval(times.heartbeat_s)
        for sentence in times.broken_rules():
            log.warning("a queue's policy does not fit this worker: %s", sentence, extra={"worker": self.id})
        log.info(
            "queue policies changed: reaper every %g s, shutdown within %g s, shortest lease %g s",
            times.reaper_s,
            times.shutdown_s,
            times.shortest_lease_s,
            extra={"worker": self.id},
        )

    def _publish(self) -> None:
        self._identity.check_first()
        now, active = time.monotonic(), self._active()
        record = WorkerRecord(
            worker=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            published_at=time.time(),
            interval_s=PRESENCE_S,
            queues=self.queues,
            concurrency=self.concurrency,
            is_stopping=self._is_stopping,
            running=[running_job(it, now) for it in active if it.phase is Phase.RUNNING],
            counters=dataclasses.asdict(self.metrics),
            mismatched=dict(self._mismatches.by_kind),
            instance=self._identity.instance,
            stuck=[running_job(it, now) for it in active if it.left_at is not None],
        )
        self._presence.publish(self.id, encode_record(record))

    def _withdraw(self) -> None:
        self._identity.withdraw()


async def _end_tasks(until: float) -> None:
    """Cancel what still runs and wait a moment, not for ever as `asyncio.run` would."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()))
    generators = asyncio.ensure_future(asyncio.get_running_loop().shutdown_asyncgens())
    await asyncio.wait([generators], timeout=max(0.01, until - time.monotonic()))


def _weights(app: App, queues: Mapping[str, int] | Iterable[str] | None) -> dict[str, int]:
    """The queues to serve and their weights; all queues of the app's jobs, alike, unless told."""
    if isinstance(queues, str):
        raise Invalid(f"queues is the text {queues!r}; write [{queues!r}] or {{{queues!r}: 1}}")
    asked = sorted({job.queue for job in app.jobs.values()}) if queues is None else queues
    weights = dict(asked) if isinstance(asked, Mapping) else dict.fromkeys(asked, 1)
    if not weights:
        if queues is not None:
            raise Invalid(
                "no queue to work on: name at least one, or leave `queues` out to serve those of the app's jobs"
            )
        raise Invalid(
            "no queue to work on, because the app has no job: declare one with @app.job. If jobs are declared in other "
            "modules, import those in the module of the app: a job is known when its module is imported"
        )
    for name, weight in weights.items():
        check_name("queue", name)
        _at_least(f"the weight of queue {name!r}", weight, 1)
    return weights


def _at_least(what: str, value: int, least: int) -> int:
    if not is_whole(value) or value < least:
        raise Invalid(f"{what} is {value!r}; write a whole number of at least {least}")
    return value


def _seconds(what: str, duration: Duration | None) -> float | None:
    return None if duration is None else microseconds(what, duration) / SECOND


def _policies(names: Iterable[str], views: Iterable[c.QueueView]) -> dict[str, Policy | None]:
    known = {view.name: view.policy for view in views}
    return {name: known.get(name) for name in names}
