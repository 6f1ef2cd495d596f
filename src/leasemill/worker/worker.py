"""`Worker`: builds the parts that a job passes, runs them, and takes them down again in the right order.

A job goes store_loop -> runner -> handler -> reporter -> store_loop; the heartbeat extends its lease meanwhile. When
the worker stops, claims stop first, then handlers, then reports; leases are extended until the last report is answered.
What must never happen: an end of the worker because the store is unavailable for a while.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from leasemill.api.app import App
from leasemill.api.logs import worker_in_store_lines
from leasemill.api.observer import Observer
from leasemill.api.policy import Duration, Executor, ReaperPreset, reaper_s
from leasemill.errors import Broken, Invalid
from leasemill.kernel.bounds import check_text
from leasemill.store.presence import new_worker_id
from leasemill.worker import pacing, presence
from leasemill.worker.deaths import Deaths
from leasemill.worker.gc_tuning import fewer_collections
from leasemill.worker.heartbeat import Heartbeat
from leasemill.worker.hooks import WorkerHooks
from leasemill.worker.housekeeping import Chore, Housekeeping
from leasemill.worker.lifespan import WorkerLifespan
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import Observers
from leasemill.worker.policies import QueuePolicies
from leasemill.worker.presence import WorkerPresence
from leasemill.worker.processes.launch import Importing
from leasemill.worker.processes.pool import process_kinds
from leasemill.worker.reaper import Reaper
from leasemill.worker.reporter import Reporter
from leasemill.worker.run import Run
from leasemill.worker.runner import Runner
from leasemill.worker.settings import Settings, at_least, drain_wait_us, seconds, start_facts, warn_of_jobs, weights
from leasemill.worker.settlement import Settlement
from leasemill.worker.shutdown import Shutdown, end_tasks
from leasemill.worker.signals import stopped_by_loop_signals
from leasemill.worker.slots import Slots
from leasemill.worker.stalls import Stalls
from leasemill.worker.start_log import StartFacts, log_started
from leasemill.worker.store_loop import StoreLoop
from leasemill.worker.threads import Background, DaemonExecutor, off_loop
from leasemill.worker.ticker import TickChore, Ticker
from leasemill.worker.timing import Times
from leasemill.worker.unmatched import MISMATCH_TIMEOUT_S
from leasemill.worker.worker_commands import WorkerCommands

log = logging.getLogger("leasemill.worker")

POLICIES_S: Final = 5.0
ID_CHECK_S: Final = 10.0


class Worker:
    """Claims jobs of an app's queues and runs them until it is stopped: `Worker(app).run_sync()`, `await worker.run()`.
    `queues`: names, or weights by name (default: those of the app's jobs). Other options: `leasemill worker --help`."""

    def __init__(
        self,
        app: App,
        queues: Mapping[str, int] | Iterable[str] | None = None,
        *,
        concurrency: int = 10,
        prefetch: int | None = None,
        drain: bool = False,
        drain_wait: Duration = 0,
        heartbeat_interval: Duration | None = None,
        reaper_interval: Duration | ReaperPreset | None = None,
        shutdown_timeout: Duration | None = None,
        mismatch_timeout: Duration | None = None,
        worker_id: str | None = None,
        executor: Executor = "thread",
        handle_signals: bool = True,
    ) -> None:
        self.app = app
        self.id = worker_id or new_worker_id()
        self.queues = weights(app, queues)
        self.concurrency = at_least("concurrency", concurrency, 1)
        self.metrics = Metrics()
        check_text("worker id", self.id)
        self._has_given_id = bool(worker_id)
        most_ahead = pacing.PREFETCH_MOST if prefetch is None else at_least("prefetch", prefetch, 0)
        self.process_kinds = process_kinds(app, executor)
        """The kinds of jobs whose handlers run in separate processes."""
        self._handles_signals = handle_signals
        kinds = {kind: job.policy for kind, job in app.handlers.items()}
        self._times = Times(
            kinds,
            self.queues,
            heartbeat_s=seconds("heartbeat interval", heartbeat_interval, None),
            reaper_s=reaper_s(reaper_interval),
            shutdown_s=None if shutdown_timeout == math.inf else seconds("shutdown timeout", shutdown_timeout, None),
        )
        self._times.check()
        self._store = app.store
        self._observers = Observers(app.observers, self.id)
        exports = self._observers.are_exporting
        self.presence = WorkerPresence(self.id, self._store.presence, time.time(), is_exporting=exports)
        self._settings = Settings(
            worker_id=self.id,
            instance=self.presence.instance,
            app=app,
            queues=self.queues,
            kinds=kinds,
            times=self._times,
            concurrency=self.concurrency,
            drains=drain,
            drain_wait_us=drain_wait_us(drain_wait, drains=drain),
            mismatch_s=seconds("mismatch timeout", mismatch_timeout, MISMATCH_TIMEOUT_S),
            metrics=self.metrics,
            observers=self._observers,
        )
        self._policies = QueuePolicies(self._settings, most_ahead)
        self.shutdown = Shutdown(self.id, self._shutdown_s, waits_for_jobs=shutdown_timeout == math.inf)
        self._background = Background(self.shutdown.fail)
        self.deaths = Deaths(self.id, self.presence.instance, self._store, self.metrics, self._background.ended)
        """What is proved elsewhere is reported here: `deaths.ended`."""
        self._ticker = Ticker(self.id, app.schedules, self._store, self.metrics)
        self.on_start: Callable[[str, StartFacts], None] = log_started
        self.is_retired = False
        self._held: Callable[[], Iterable[Run]] = lambda: ()
        self.commands = WorkerCommands(self.id, self.shutdown, self.stop)
        self.presence.on_order = partial(self._on_loop, self.commands.obey)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lifespan = WorkerLifespan(app, self.id, self.shutdown.fail)

    def run_sync(self) -> None:
        """`run`, in a new event loop, which is abandoned together with any handler that does not end."""
        loop = asyncio.new_event_loop()
        loop.set_default_executor(DaemonExecutor())
        try:
            loop.run_until_complete(self.run())
        finally:
            loop.run_until_complete(end_tasks(self.shutdown.plan().closing_until))
            loop.close()

    async def run(self) -> None:
        """Work until stopped (`stop`, SIGTERM, SIGINT) or, with `drain`, until no job is due.

        If its task is cancelled, running jobs are given back first: that takes up to 2 s.
        """
        if self._loop is not None:
            raise Invalid("this worker has run already: make another")
        Importing.check()
        self._loop = asyncio.get_running_loop()
        if self.shutdown.is_requested:  # there was no loop to begin it on
            self.shutdown.begin()
        signals = stopped_by_loop_signals(self._loop, self.stop) if self._handles_signals else nullcontext()
        with worker_in_store_lines(self.id), signals:
            try:
                self.presence.begin()
                await self._settle()
                if not self.shutdown.has_begun:
                    await self._run_parts()
            finally:
                self.deaths.close()
                await self._leave()
        self.shutdown.raise_failure()

    async def _settle(self) -> None:
        """What comes before its parts are there."""
        if self._has_given_id:  # a second worker of one id is refused before it claims anything
            wait = partial(self.presence.await_free, lambda: self.shutdown.is_requested)
            await self.shutdown.unless_begun(off_loop(wait))
        # Before this worker's record replaces that of a predecessor of the same id, which may be dead.
        await self.shutdown.unless_begun(off_loop(self.deaths.look))
        await self.shutdown.unless_begun(self._policies.settle())
        await self.shutdown.unless_begun(self._lifespan.enter())
        await self.shutdown.unless_begun(self._ticker.fire_first(self._observers))
        self._times.check()

    async def _run_parts(self) -> None:
        self._assemble()
        try:
            await self.shutdown.unless_begun(self.runner.prepare())
            # Before the first claim: whoever has a lease can be proved dead.
            await self.shutdown.unless_begun(off_loop(self._publish))
            await self.shutdown.unless_begun(off_loop(self.deaths.round))  # or a drain misses their jobs
        except BaseException:
            await self._close_parts()
            raise
        with fewer_collections():
            await self._work()

    async def _leave(self) -> None:
        try:
            failed = await self._lifespan.leave(self.shutdown)
            self.shutdown.failure = self.shutdown.failure or failed
        finally:
            self.presence.end()

    async def run_in(self, state: Any) -> None:
        """`run`, inside a lifespan that has been entered already: `async with app.entered_lifespan() as state`."""
        self._lifespan.adopt(state)
        await self.run()

    def stop(self, *, now: bool = False) -> None:
        """Stop: no more claims, running jobs may end, the rest is released, all of it within the shutdown timeout.

        With a timeout of `math.inf` it waits until running jobs have ended, and extends their leases meanwhile. A
        second call, or `now`, does not wait for handlers. From any thread.
        """
        self.shutdown.request(now=now)
        if self._loop is not None:
            self._on_loop(self.shutdown.begin)

    def _shutdown_s(self) -> float:
        """No longer than the shortest lease in hand: a job may have a shorter one than its kind. From any thread."""
        return min([self._times.shutdown_s, *(run.lease_s for run in self._held())])

    def retire(self) -> None:
        """Claim no more, and end when the running jobs have ended, however long that takes. On the event loop."""
        self.is_retired = True
        self._take_no_more()

    @property
    def facts(self) -> StartFacts:
        return start_facts(self.app, self.queues, self.concurrency)

    def _assemble(self) -> None:
        """Build the parts that a job passes, on the event loop: each after those that it calls."""
        store, metrics, observers, ended = self._store, self.metrics, self._observers, self._background.ended
        self.slots = slots = Slots(self.concurrency, metrics)
        self.store_loop = loop = StoreLoop(self._settings, self._policies, self.shutdown.fail)
        self.hooks = WorkerHooks(self.id, self.app, store, self._lifespan.state, loop.changed)
        self.heartbeat = Heartbeat(
            self.id,
            store,
            metrics,
            running=slots.running,
            on_lost=self._lost,
            on_answered=lambda: self._on_loop(self.reporter.extension_answered),
            on_end=ended,
            interval_s=self._times.heartbeat_s,
            observers=observers,
        )
        self._stalls = Stalls(self.id, metrics, running=slots.running, on_end=ended)
        self._settlement = Settlement(self._settings, self.hooks, on_claimable=loop.wake)
        self.reporter = Reporter(self._settings, self.heartbeat, self._settlement, on_report=loop.changed)
        self.runner = Runner(
            self._settings,
            slots,
            self.reporter,
            self.heartbeat,
            self._stalls,
            self.hooks,
            self.shutdown,
            process_kinds=self.process_kinds,
            state=self._lifespan.state,
            on_room=loop.changed,
        )
        loop.connect(self.reporter, self.runner)
        self.commands.steer(loop, self.runner)
        self.shutdown.on_stopping = self.runner.announce_stop
        self._held = slots.running
        self._reaper = Reaper(self.id, store, metrics, observers)
        self._reaper.on_quarantined = self.deaths.on_quarantined = self.hooks.quarantined
        self._housekeeping = self._new_housekeeping()

    def _new_housekeeping(self) -> Housekeeping:
        read_policies = partial(self._policies.read_again, self.heartbeat)
        return Housekeeping(
            self.id,
            [
                Chore("presence", lambda: presence.PRESENCE_S, self._publish),
                Chore("worker id", lambda: ID_CHECK_S, self.presence.check),
                Chore("reaper", lambda: self._times.reaper_s, self._reaper.run),
                Chore("queue policies", lambda: POLICIES_S, read_policies),
                TickChore(self._ticker),
            ],
            self.metrics,
            at_end=Chore("withdrawal of the presence", lambda: 0.0, self._withdraw),
            jitter=self._store.entropy.jitter,
            on_end=self._background.ended,
            observers=self._observers,
        )

    async def _work(self) -> None:
        try:
            self._observers.notify(Observer.worker_began, self.id, self.concurrency, partial(asdict, self.metrics))
            self._background.start([self.heartbeat, self._stalls, self._housekeeping, self.deaths])
            self.on_start(self.id, self.facts)
            warn_of_jobs(self.id, self.app)
            await self._work_until_stopped()
        finally:
            await self._close_parts()
            self._observers.notify(Observer.worker_ended, self.id)
            log.info("worker stopped", extra={"worker": self.id})

    async def _work_until_stopped(self) -> None:
        if self.shutdown.has_begun:
            self._take_no_more()
        fetching = asyncio.create_task(self.store_loop.run())
        stopping = asyncio.create_task(self.shutdown.begun())
        try:
            await asyncio.wait({fetching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if self.is_retired:
                await self.shutdown.unless_begun(self.slots.emptied())
            await self._shut_down(fetching)
        except asyncio.CancelledError:
            if not fetching.cancelling():  # else everything on this loop was cancelled: nothing can be sent any more
                self.stop(now=True)
                await self._shut_down(fetching)
            raise
        finally:
            stopping.cancel()
            fetching.cancel()

    def _take_no_more(self) -> None:
        """Claim nothing, and start nothing that was claimed."""
        self.runner.take_no_more()
        self.store_loop.stop()

    async def _close_parts(self) -> None:
        self._background.stop()
        self._reaper.close()
        self.store_loop.close()
        self._settlement.close()
        self.hooks.close()
        self.runner.close()
        await self.runner.closed(self.shutdown.plan().closing_until)
        await self._background.wait(self.shutdown.plan().closing_until)

    async def _shut_down(self, fetching: asyncio.Task[None]) -> None:
        """Claims first, then handlers, then reports.

        Each stage has its own deadline in the shutdown's plan, so that none takes the time of the next. The heartbeat
        goes on to the end of all of them: a handler that may still end must not lose its lease meanwhile. A second
        request to stop ends a wait at once, and makes the plan shorter: it is read again at each stage.
        """
        shutdown = self.shutdown
        shutdown.is_requested = True
        self._take_no_more()
        # A claim under way is waited for: what it is granted is given back at once, and not left to expire.
        await shutdown.until(min(shutdown.handlers_until, time.monotonic() + self._times.shutdown_s), fetching)
        if fetching.done() and not fetching.cancelled() and (error := fetching.exception()) is not None:
            self.shutdown.fail(error)
        if self.shutdown.failure is None:
            await shutdown.until(shutdown.handlers_until, self.slots.emptied())
        if self.slots.active:
            # Asked to stop, then given up: a thread cannot be ended. Its job is not released while its handler runs.
            self.runner.watchdog.stop_all(shutdown.plan().grace_until)
            await shutdown.grace(self.slots.emptied())
            self.runner.watchdog.abandon_all()
            await self.slots.without_processes((time.monotonic() + shutdown.plan().reports_until) / 2)
        if not isinstance(self.shutdown.failure, Broken):  # the store takes reports, whatever else went wrong
            await self.store_loop.send_last(shutdown.plan().reports_until)
            await self.hooks.finished(shutdown.plan().reports_until)

    def _on_loop(self, function: Callable[..., None], *args: object) -> None:
        """Call it on the event loop. From any thread."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: the worker has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _lost(self, run: Run, reason: str | None) -> None:
        """Called in the heartbeat's thread when a lease is lost."""
        if reason is not None:
            run.loss.set(reason)  # at once: the loop may be blocked, a handler in a thread need not wait for it
        self._on_loop(self.runner.watchdog.lose, run, reason)

    def _withdraw(self) -> None:
        """Unless it still holds leases of handlers that did not end: its record says that it is stopping, and others
        who prove that it has ended release them (X8)."""
        if self.slots.holds_leases:
            self._publish()
        else:
            self.presence.withdraw()

    def _publish(self) -> None:
        self.presence.publish(
            self.slots,
            self.metrics,
            queues=self.queues,
            schedules=self.app.schedules.declared,
            mismatched=self.runner.unmatched.by_kind,
            is_stopping=self.shutdown.is_requested,
            clock_ahead_s=self._ticker.clock.ahead_s,
        )
