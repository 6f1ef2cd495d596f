"""Hooks: a user's code around every run of a handler, at every enqueue, and when a run has ended.

Tracing, error reporting and a framework's connection handling are built on them. An app has hooks, and so has each of
its jobs. The lifespan of an app is set up before a worker claims its first job and taken down after its last report.
`Tracing` follows a job from where it is enqueued to where it runs; an app has none by default.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from leasemill.api.logs import job_fields
from leasemill.errors import Invalid
from leasemill.kernel import commands as c


class TracedEnqueue(Protocol):
    """An enqueue that is followed."""

    @property
    def command(self) -> c.Enqueue:
        """The command that is sent: the jobs with their headers."""

    def answered(self, outcomes: list[c.EnqueueOutcome]) -> None: ...


class TracedCommit(Protocol):
    """A commit that is followed."""

    def answered(self, outcome: c.CommitOutcome | None) -> None: ...


class Tracing(Protocol):
    """Follows jobs across processes. No method may raise an error of its own.

    It stands around the calls by which a program hands jobs to the store, and adds to their headers when they are sent,
    not when a call is made: what a schedule keeps belongs to no trace.
    """

    def enqueue(self, command: c.Enqueue) -> AbstractContextManager[TracedEnqueue]:
        """Around an enqueue, in the thread or the task that waits for it."""

    def commit(self, lease: c.Lease) -> AbstractContextManager[TracedCommit]:
        """Around the commit of a run, in the thread or the task of its handler."""

    def follow_up_headers(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        """The headers of a job that another fact will enqueue: a follow-up, a callback of a group."""


class JobEvent(Struct, frozen=True, eq=False, omit_defaults=True, repr_omit_defaults=True):
    """A run of a job, when it starts or when it is known how it ended. Which hook sets what: docs/guides/hooks.md."""

    job_id: str
    kind: str
    queue: str
    lane: str | None
    attempt: int
    """The number of times the job has been claimed, including this one."""
    worker: str
    headers: Mapping[str, str]
    """The headers that travel with the job, in addition to its arguments."""
    state: Any = None
    """The value that the app's lifespan yielded in the worker."""
    seconds: float | None = None
    """The time that the handler ran."""
    error: str | None = None
    """The reason why the run failed, as the job's record has it."""
    exception: BaseException | None = None
    """The exception that the handler raised; None: it timed out, its process died, its arguments do not fit, or its
    result."""
    fingerprint: str | None = None
    """The group of this failure, as in `leasemill jobs failures`."""
    next_at: datetime | None = None
    """The time at which the job is due again, in UTC, if the failure has set one."""
    reason: str | None = None
    """The reason why the lease was lost."""

    @property
    def log_fields(self) -> dict[str, Any]:
        return job_fields(self.job_id, self.kind, self.attempt, self.worker, self.headers)


class _Run(Protocol):
    @property
    def kind(self) -> str: ...


@dataclass(slots=True)
class Outgoing:
    """A job that is about to be enqueued. What a hook puts into `headers` travels with it."""

    kind: str
    queue: str
    headers: dict[str, str]


RunHook: TypeAlias = Callable[[Any], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Called with the run's `Context`, which `App.around` asks for; jobs have hooks, so hooks know no jobs."""
EnqueueHook: TypeAlias = Callable[[Outgoing], None]
EventHook: TypeAlias = Callable[[JobEvent], None] | Callable[[JobEvent], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class RunHooks:
    """The hooks of runs, of an app or of one of its jobs, in the order in which they were declared."""

    around: list[RunHook] = field(default_factory=list)
    on_start: list[EventHook] = field(default_factory=list)
    on_success: list[EventHook] = field(default_factory=list)
    on_retry: list[EventHook] = field(default_factory=list)
    on_failure: list[EventHook] = field(default_factory=list)
    on_lost: list[EventHook] = field(default_factory=list)


@dataclass(slots=True)
class Hooks(RunHooks):
    """The hooks of one app."""

    on_enqueue: list[EnqueueHook] = field(default_factory=list)
    lifespan: Lifespan | None = None
    tracing: Tracing | None = None
    on_commit: list[Callable[[float], None]] = field(default_factory=list)
    """Called with the seconds that the store took to answer a commit, where the handler runs; they must not raise."""

    def committed(self, took_s: float) -> None:
        for observe in self.on_commit:
            observe(took_s)

    def headers(self, kind: str, queue: str, given: dict[str, str] | None) -> dict[str, str] | None:
        """The headers of a job of this kind; None: it has none."""
        if not self.on_enqueue:
            return given
        job = Outgoing(kind, queue, dict(given or {}))
        for hook in self.on_enqueue:
            hook(job)
        return job.headers or None

    def follow_up_headers(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        """The headers of a job that another fact will enqueue: a follow-up, a callback of a group."""
        return headers if self.tracing is None else self.tracing.follow_up_headers(headers)


def sync_manager(hook: RunHook, context: _Run) -> AbstractContextManager[Any]:
    """Return the context manager to enter around a sync handler, in its thread."""
    manager = hook(context)
    if not isinstance(manager, AbstractContextManager):
        raise Invalid(
            f"the hook {hook_name(hook)} does not return a context manager that a sync handler can enter: write it "
            f"with @contextmanager, or make {context.kind} async"
        )
    return manager


def manager(hook: RunHook, context: _Run) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
    """Return the context manager to enter around an async handler, on the event loop."""
    found = hook(context)
    if not isinstance(found, AbstractContextManager | AbstractAsyncContextManager):
        raise Invalid(f"the hook {hook_name(hook)} does not return a context manager: write it with @contextmanager")
    return found


def is_async_hook(hook: EventHook) -> bool:
    """Return True if the hook is written with `async def`, as a function or as the `__call__` of an object."""
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)


def hook_name(hook: Callable[..., object]) -> str:
    return getattr(hook, "__qualname__", repr(hook))


Lifespan: TypeAlias = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Returns a context manager; what that yields is the `ctx.state` of handlers and hooks."""


@asynccontextmanager
async def entered(lifespan: Lifespan | None) -> AsyncIterator[Any]:
    """Enter the lifespan and yield its state. A sync lifespan is entered on the event loop too."""
    if lifespan is None:
        yield None
        return
    manager = lifespan()
    if isinstance(manager, AbstractAsyncContextManager):
        async with manager as state:
            yield state
    elif isinstance(manager, AbstractContextManager):
        with manager as state:
            yield state
    else:
        raise Invalid(
            f"the lifespan {lifespan_name(lifespan)} does not return a context manager: write @asynccontextmanager, or "
            "@contextmanager, below @app.lifespan"
        )


def check_lifespan(lifespan: object) -> None:
    """Refuse a generator whose decorator was forgotten, where it is written."""
    is_sync = inspect.isgeneratorfunction(lifespan)
    if is_sync or inspect.isasyncgenfunction(lifespan) or inspect.iscoroutinefunction(lifespan):
        manager = "contextmanager" if is_sync else "asynccontextmanager"
        name = lifespan_name(lifespan)
        raise Invalid(f"the lifespan {name} does not return a context manager: write @{manager} below @app.lifespan")


def lifespan_name(lifespan: object) -> str:
    return getattr(lifespan, "__qualname__", repr(lifespan))
