"""Hooks: code of yours around every run of a handler, and at every enqueue.

What tracing, error reporting and a framework's connection hygiene have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

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


@dataclass(slots=True)
class Hooks:
    """The hooks of one app, in the order in which they were declared."""

    around: list[RunHook] = field(default_factory=list)
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

    def enter(self, stack: ExitStack, context: _Run) -> None:
        """Enter every hook around a sync handler, in its thread."""
        for hook in self.around:
            manager = hook(context)
            if not isinstance(manager, AbstractContextManager):
                raise Invalid(
                    f"the hook {_name(hook)} does not return a context manager that a sync handler can enter: write it "
                    f"with @contextmanager, or make {context.kind} async"
                )
            stack.enter_context(manager)

    async def aenter(self, stack: AsyncExitStack, context: _Run) -> None:
        """Enter every hook around an async handler, on the event loop."""
        for hook in self.around:
            manager = hook(context)
            if isinstance(manager, AbstractAsyncContextManager):
                await stack.enter_async_context(manager)
            elif isinstance(manager, AbstractContextManager):
                stack.enter_context(manager)
            else:
                raise Invalid(
                    f"the hook {_name(hook)} does not return a context manager: write it with @contextmanager"
                )


def _name(hook: Callable[..., object]) -> str:
    return getattr(hook, "__qualname__", repr(hook))
