"""Hooks: code of yours around every run of a handler, at every enqueue, and when something has become of a job.

What tracing, error reporting and a framework's connection hygiene have in common. An app has hooks, and so has each of
its jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from leasemill.api.job_event import JobEvent
from leasemill.api.lifespan import Lifespan
from leasemill.api.tracing import Tracing
from leasemill.errors import Invalid


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

    def carried(self, headers: dict[str, str] | None) -> dict[str, str] | None:
        """The headers of a job that another fact will enqueue: a follow-up, a callback of a group."""
        return headers if self.tracing is None else self.tracing.carried(headers)


def sync_manager(hook: RunHook, context: _Run) -> AbstractContextManager[Any]:
    """What to enter around a sync handler, in its thread."""
    manager = hook(context)
    if not isinstance(manager, AbstractContextManager):
        raise Invalid(
            f"the hook {hook_name(hook)} does not return a context manager that a sync handler can enter: write it "
            f"with @contextmanager, or make {context.kind} async"
        )
    return manager


def manager(hook: RunHook, context: _Run) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
    """What to enter around an async handler, on the event loop."""
    found = hook(context)
    if not isinstance(found, AbstractContextManager | AbstractAsyncContextManager):
        raise Invalid(f"the hook {hook_name(hook)} does not return a context manager: write it with @contextmanager")
    return found


def is_async_hook(hook: EventHook) -> bool:
    """Whether it is written with `async def`, as a function or as the `__call__` of an object."""
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)


def hook_name(hook: Callable[..., object]) -> str:
    return getattr(hook, "__qualname__", repr(hook))
