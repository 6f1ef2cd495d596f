"""Leasemill in a web application: FastAPI, Starlette, and whatever takes a lifespan as they do.

    web = FastAPI(lifespan=lifespan(jobs))                                 # opens the store, and closes it at the end
    web = FastAPI(lifespan=lifespan(jobs, worker={"concurrency": 5}))      # and runs a worker in this process

The worker takes no signals: they are the server's. What must never happen: that it dies unnoticed. Its end is
logged, `health` reports it, and the application's shutdown raises its error. No framework is imported here.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypedDict
from weakref import WeakKeyDictionary

from leasemill.api.app import App
from leasemill.api.policy import Duration, Executor, ReaperPreset
from leasemill.errors import Invalid
from leasemill.worker.worker import Worker

log = logging.getLogger("leasemill.worker")

Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
"""A function of the web application that returns an async context manager, which may yield the lifespan's state."""


class WorkerOptions(TypedDict, total=False):
    """The options of the worker in the web server's process, as `Worker` takes them."""

    queues: Mapping[str, int] | Iterable[str]
    concurrency: int
    prefetch: int
    heartbeat_interval: Duration
    reaper_interval: Duration | ReaperPreset
    shutdown_timeout: Duration
    mismatch_timeout: Duration
    worker_id: str
    executor: Executor


@dataclass(frozen=True, slots=True)
class Health:
    """The health of this process: whether it does what its lifespan was asked for."""

    is_ok: bool
    reason: str


@dataclass(slots=True)
class _Running:
    """The lifespans of one app that are open in this process."""

    count: int = 0
    closes_store: bool = False
    """True if the first of them opened it, so the last one closes it."""
    workers: dict[Worker, asyncio.Task[None]] = field(default_factory=dict)


_running: Final[WeakKeyDictionary[App, _Running]] = WeakKeyDictionary()
_changing: Final = threading.Lock()


def lifespan(app: App, *, worker: WorkerOptions | None = None, inside: Lifespan | None = None) -> Lifespan:
    """A lifespan for the web application: the store is open while it serves.

    `worker`: options of a worker that runs in this process; `{}` for the defaults, None for no worker. `inside`: your
    own lifespan. It is entered when the store is open and left when the worker has stopped, so handlers may use what
    it sets up; what it yields is the lifespan's state.
    """
    if not isinstance(app, App):
        raise Invalid(f"lifespan takes the leasemill.App, not {app!r}: write FastAPI(lifespan=lifespan(jobs))")
    _check_options(worker)
    _check_inside(inside)

    @asynccontextmanager
    async def open_and_work(web: Any) -> AsyncIterator[Any]:
        died: list[BaseException] = []
        async with AsyncExitStack() as stack:
            running = await stack.enter_async_context(_store_open(app))
            state = None if inside is None else await stack.enter_async_context(inside(web))
            if worker is not None:
                await stack.enter_async_context(_working(Worker(app, handle_signals=False, **worker), running, died))
            yield state
        if died:  # when all else has been closed
            raise died[0]

    return open_and_work


def health(app: App) -> Health:
    """Return whether the lifespan of this process is open and its worker runs: for a liveness probe. Asks no store."""
    running = _running.get(app)
    if running is None:
        return Health(is_ok=False, reason="the lifespan is not open: the server, or the test's client, does not run it")
    for worker, task in list(running.workers.items()):
        if task.done():
            return Health(is_ok=False, reason=f"worker {worker.id} has ended{_why(task)}")
    count = len(running.workers)
    return Health(is_ok=True, reason="no worker in this process" if count == 0 else "the worker runs")


@asynccontextmanager
async def _store_open(app: App) -> AsyncIterator[_Running]:
    with _changing:
        running = _running.setdefault(app, _Running())
        if running.count == 0:
            running.closes_store = not app.is_open
        running.count += 1
    try:
        await asyncio.to_thread(lambda: app.store)  # it may read a log, or connect
        yield running
    finally:
        with _changing:
            running.count -= 1
            is_last = running.count == 0
            if is_last:
                del _running[app]
        if is_last and running.closes_store:
            await asyncio.to_thread(app.close)


@asynccontextmanager
async def _working(worker: Worker, running: _Running, died: list[BaseException]) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run(), name=f"leasemill worker {worker.id}")
    running.workers[worker] = task
    task.add_done_callback(lambda _task: _report_end(worker, task))
    try:
        yield
    finally:
        worker.stop()
        try:
            await asyncio.wait([task])  # no longer than its shutdown timeout
        finally:
            del running.workers[worker]
        if not task.cancelled() and (error := task.exception()) is not None:
            died.append(error)


def _report_end(worker: Worker, task: asyncio.Task[None]) -> None:
    if not worker.shutdown.is_requested or _why(task):
        log.critical(
            "the worker of this process has ended%s; requests are served, jobs are not run here",
            _why(task),
            extra={"worker": worker.id},
        )


def _why(task: asyncio.Task[None]) -> str:
    if task.cancelled():
        return ": its task was cancelled"
    error = task.exception()
    return "" if error is None else f": {type(error).__name__}: {error}"


def _check_options(worker: WorkerOptions | None) -> None:
    """Wrong options are refused where they are written, not when the server starts."""
    if worker is None:
        return
    if not isinstance(worker, Mapping):
        raise Invalid(f"worker is {worker!r}: write its options, such as worker={{'concurrency': 5}}, or worker={{}}")
    known = WorkerOptions.__annotations__
    unknown = [name for name in worker if name not in known]
    if unknown:
        raise Invalid(f"worker has no option {unknown[0]!r} here; write some of {', '.join(known)}")


def _check_inside(inside: Lifespan | None) -> None:
    if inside is None:
        return
    if inspect.isasyncgenfunction(inside) or inspect.iscoroutinefunction(inside) or not callable(inside):
        name = getattr(inside, "__name__", repr(inside))
        raise Invalid(
            f"inside={name} is not a lifespan: write `@asynccontextmanager` above `async def {name}(web): ...`"
        )
