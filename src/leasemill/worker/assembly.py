"""The parts that a job passes in a worker, built and connected: fetcher -> runner -> handler -> reporter.

What must never happen here: a call of a part that is built later, before all of them are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from leasemill.api.app import App
from leasemill.kernel.model import Policy
from leasemill.store.base import Store
from leasemill.worker.fetcher import Fetcher
from leasemill.worker.heartbeat import Heartbeat
from leasemill.worker.hooks import WorkerHooks
from leasemill.worker.metrics import Metrics
from leasemill.worker.observers import Observers
from leasemill.worker.policies import QueuePolicies
from leasemill.worker.reporter import Reporter
from leasemill.worker.run import Run
from leasemill.worker.runner import Runner
from leasemill.worker.slots import Slots
from leasemill.worker.stalls import Stalls
from leasemill.worker.timing import Times
from leasemill.worker.unmatched import UnmatchedJobs
from leasemill.worker.watchdog import Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """What the parts are built from: what was chosen for the worker, and what it does when they report to it."""

    worker_id: str
    instance: str
    app: App
    store: Store
    metrics: Metrics
    observers: Observers
    queues: Mapping[str, int]
    kinds: Mapping[str, Policy]
    policies: QueuePolicies
    times: Times
    concurrency: int
    drains: bool
    drain_wait_us: int
    process_kinds: Collection[str]
    mismatch_s: float
    state: Any
    """Of the app's lifespan."""
    stopping: threading.Event
    """`ctx.stopping` of every handler."""
    on_loop: Callable[..., None]
    """Calls a function on the event loop, from any thread."""
    on_end: Callable[[BaseException | None], None]
    """A background thread has ended."""
    on_failure: Callable[[BaseException], None]
    on_stuck: Callable[[], None]


class Parts:
    """Of one run of a worker. Built on its event loop, each after those it is given."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self.slots = Slots(setup.concurrency, setup.metrics)
        self.fetcher = self._new_fetcher()
        self.hooks = WorkerHooks(setup.worker_id, setup.app, setup.store, setup.state, self.fetcher.room_changed)
        self.heartbeat = self._new_heartbeat()
        self.stalls = Stalls(setup.worker_id, setup.metrics, running=self.slots.running, on_end=setup.on_end)
        self.reporter = self._new_reporter()
        self.watchdog = self._new_watchdog()
        self.unmatched = UnmatchedJobs(setup.store, setup.metrics, self.reporter, setup.mismatch_s)
        self.runner = self._new_runner()

    def take_no_more(self) -> None:
        """Claim nothing, and start nothing that was claimed."""
        self.runner.take_no_more()
        self.fetcher.stop()

    def _new_fetcher(self) -> Fetcher:
        setup = self._setup
        return Fetcher(
            setup.worker_id,
            setup.instance,
            setup.store,
            setup.metrics,
            queues=setup.queues,
            kinds=setup.kinds,
            drains=setup.drains,
            drain_wait_us=setup.drain_wait_us,
            times=setup.times,
            observers=setup.observers,
        )

    def _new_heartbeat(self) -> Heartbeat:
        setup = self._setup
        return Heartbeat(
            setup.worker_id,
            setup.store,
            setup.metrics,
            running=self.slots.running,
            on_lost=self._lost,
            on_answered=lambda: setup.on_loop(self.reporter.flush),
            on_end=setup.on_end,
            interval_s=setup.times.heartbeat_s,
            observers=setup.observers,
        )

    def _new_reporter(self) -> Reporter:
        setup = self._setup
        return Reporter(
            setup.worker_id,
            setup.store,
            self.slots,
            setup.metrics,
            self.heartbeat,
            setup.observers,
            self.hooks,
            on_answered=self._reports_answered,
            on_claimable=self.fetcher.wake,
            claims=self.fetcher,
        )

    def _new_watchdog(self) -> Watchdog:
        setup = self._setup
        return Watchdog(
            self.slots,
            setup.metrics,
            self.reporter,
            self.stalls,
            setup.observers,
            self.hooks,
            on_room=self.fetcher.room_changed,
            on_stuck=setup.on_stuck,
        )

    def _new_runner(self) -> Runner:
        setup = self._setup
        return Runner(
            setup.worker_id,
            setup.store,
            setup.app,
            self.slots,
            setup.metrics,
            process_kinds=setup.process_kinds,
            most_ahead=setup.policies.most_ahead,
            has_limit=setup.policies.has_limit,
            reporter=self.reporter,
            heartbeat=self.heartbeat,
            stalls=self.stalls,
            watchdog=self.watchdog,
            unmatched=self.unmatched,
            observers=setup.observers,
            hooks=self.hooks,
            state=setup.state,
            stopping=setup.stopping,
            on_room=self.fetcher.room_changed,
            on_failure=setup.on_failure,
        )

    def _reports_answered(self) -> None:
        if self.reporter.failure is not None:
            self._setup.on_failure(self.reporter.failure)
        self.fetcher.reported()

    def _lost(self, run: Run, reason: str | None) -> None:
        """In the heartbeat's thread."""
        if reason is not None:
            run.loss.set(reason)  # at once: the loop may be blocked, a handler in a thread need not wait for it
        self._setup.on_loop(self.watchdog.lose, run, reason)
