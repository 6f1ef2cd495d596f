"""When and why a worker stops, and how the time it has for that is spent.

Asked once, it waits for running jobs: for a time or, with a limit of infinity, until they have ended. Asked twice, it
does not. It also stops when a part of it fails, or when all of its slots are stuck.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from leasemill.errors import WorkerStuck
from leasemill.worker.timing import HURRY_S, ShutdownPlan, shutdown_plan

log = logging.getLogger("leasemill.worker")


class Shutdown:
    """Whether a worker is to stop, how soon, and waiting that ends when it is."""

    def __init__(self, worker_id: str, limit_s: Callable[[], float], *, waits_for_jobs: bool = False) -> None:
        self.is_requested = False
        self.hurries = False
        """It does not wait for handlers."""
        self.on_planned: Callable[[float], None] | None = None
        """Called with the monotonic time by which the worker is gone, and again if that gets earlier."""
        self.stopping = threading.Event()
        """`ctx.stopping` of every handler: set at once, also while the event loop is blocked."""
        self.on_stopping: Callable[[], None] | None = None
        """Called when `stopping` was set, in whatever thread did it."""
        self.failure: BaseException | None = None
        """What the worker raises when it has stopped."""
        self._is_stuck = False
        self._worker_id = worker_id
        self._limit_s = limit_s
        """How long a shutdown that begins now may take."""
        self._waits_for_jobs = waits_for_jobs
        self._plan: ShutdownPlan | None = None
        self._begun = asyncio.Event()
        self._hurried = asyncio.Event()

    def request(self, *, now: bool) -> None:
        """Ask for a shutdown, from any thread; `begin` follows on the event loop, if there is one."""
        self.hurries = now or self.is_requested
        self.is_requested = True
        self._announce()
        if not self.is_patient:
            self.plan()

    def begin(self) -> None:
        """Begin the shutdown, and wake what waits for it. Called on the event loop."""
        if self.hurries and not self._hurried.is_set():
            log.warning("stopping now: running handlers are stopped", extra={"worker": self._worker_id})
            self._hurried.set()
        elif self.is_requested and not self._begun.is_set():
            log.info(
                "stopping: waiting for running jobs; a second signal stops them",
                extra={"worker": self._worker_id},
            )
        self._announce()
        self._begun.set()

    def _announce(self) -> None:
        if not self.stopping.is_set():
            self.stopping.set()
            if self.on_stopping is not None:
                self.on_stopping()

    def fail(self, error: BaseException) -> None:
        """The store cannot be trusted, or a part of the worker broke: stop, and log why. On the event loop."""
        if self.failure is None:
            self.failure = error
            log.critical("worker stops: %s", error, extra={"worker": self._worker_id})
        if self.is_requested and self.is_patient:
            self.request(now=True)  # what it waits for may never end now
        self.begin()

    def end_stuck(self, size: int) -> None:
        """All slots are stuck. Threads cannot be killed, only the process can: it ends, and its supervisor starts
        another."""
        if not self._is_stuck and not self.is_requested:
            self._is_stuck = True
            log.critical("worker stops: all slots are stuck (%d of %d)", size, size, extra={"worker": self._worker_id})
            self.begin()

    def raise_failure(self) -> None:
        """Raise why the worker has stopped, if it was not asked to."""
        if self.failure is not None:
            raise self.failure
        if self._is_stuck:
            raise WorkerStuck(
                f"every slot of worker {self._worker_id} was taken by a handler that had timed out or lost its lease "
                "and did not return: start the worker again, and let handlers look at ctx.lost"
            )

    @property
    def is_patient(self) -> bool:
        """It waits for running jobs however long they take: the limit is for what follows."""
        return self._waits_for_jobs and not self.hurries

    @property
    def handlers_until(self) -> float:
        """Handlers may end by themselves until this monotonic time."""
        return math.inf if self.is_patient else self.plan().handlers_until

    def plan(self) -> ShutdownPlan:
        """When which part of the shutdown is over, set when it begins; a hurry makes it shorter, never longer."""
        plan, now = self._plan, time.monotonic()
        if plan is None:
            limit_s = HURRY_S if self.hurries else self._limit_s()
            plan = shutdown_plan(now, limit_s, waits_for_handlers=not self.hurries)
        elif self.hurries and plan.handlers_until > now:
            plan = shutdown_plan(now, min(HURRY_S, plan.gone_by - now), waits_for_handlers=False)
        else:
            return plan
        self._plan = plan
        if self.on_planned is not None:
            self.on_planned(plan.gone_by)
        return plan

    @property
    def has_begun(self) -> bool:
        """Also without a request: a part of the worker failed."""
        return self._begun.is_set()

    async def begun(self) -> None:
        await self._begun.wait()

    async def unless_begun(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, but let go of it when the worker is stopped: the store may not answer."""
        doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._begun.wait())
        try:
            await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                doing.result()
        finally:
            stopping.cancel()
            doing.cancel()

    async def grace(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for it until the grace of handlers that were stopped is over, whatever else is requested."""
        future = asyncio.ensure_future(work)
        await asyncio.wait([future], timeout=max(0.0, self.plan().grace_until - time.monotonic()))
        future.cancel()

    async def until(self, deadline: float, work: asyncio.Future[Any] | Coroutine[Any, Any, Any]) -> None:
        """Wait for it, no longer than until the deadline or a second request to stop."""
        future, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self._hurried.wait())
        left_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        try:
            await asyncio.wait({future, hurry}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
            if not future.done():
                future.cancel()


async def end_tasks(until: float) -> None:
    """Cancel what still runs and wait a moment, not for ever as `asyncio.run` would."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()))
    generators = asyncio.ensure_future(asyncio.get_running_loop().shutdown_asyncgens())
    await asyncio.wait([generators], timeout=max(0.01, until - time.monotonic()))
