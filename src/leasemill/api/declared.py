"""What `@app.job` returns for each shape of a function: a `JobType` that is called as the function itself.

Calling runs the function and nothing else: no store, no hook, no retry. The four classes differ for type checkers, and
for frameworks that look whether what they call is async: such calls return a coroutine, and handlers with a `Context`
take it first.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from leasemill.api.arguments import Arguments
from leasemill.api.context import Context
from leasemill.api.hook_registry import DeclaresHooks
from leasemill.api.hooks import RunHooks
from leasemill.api.job import JobType
from leasemill.errors import Invalid

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class HookedJob(JobType[P, R], DeclaresHooks):
    """A job that this program declares: it can have hooks of its own, `@charge.on_failure`."""

    @property
    def run_hooks(self) -> RunHooks:
        return self.own_hooks


class SyncJob(HookedJob[P, R]):
    """A job whose handler is a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the handler here and now."""
        result: R = self.function(*args, **kwargs)
        return result


class AsyncJob(HookedJob[P, R]):
    """A job whose handler is async."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the handler on this event loop."""
        result: R = await self.function(*args, **kwargs)
        return result


class SyncContextJob(HookedJob[P, R]):
    """A job whose handler is a plain function with a context."""

    def __call__(self, ctx: Context[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the handler here and now, with this context."""
        result: R = self.function(ctx, *args, **kwargs)
        return result


class AsyncContextJob(HookedJob[P, R]):
    """A job whose handler is async, with a context."""

    async def __call__(self, ctx: Context[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the handler on this event loop, with this context."""
        result: R = await self.function(ctx, *args, **kwargs)
        return result


class Declares(Protocol):
    """The type of `@app.job(...)`: takes a handler, with or without a Context first, and returns its `JobType`."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits is the one
        self, function: Callable[Concatenate[Context[S], P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context[S], P], R], /) -> SyncContextJob[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncJob[P, R]: ...


def class_for(arguments: Arguments, *, is_async: bool) -> type[JobType[..., Any]]:
    """The class of a declaration; annotations that cannot be resolved yet count as without a context."""
    takes_context = False
    with suppress(Invalid):
        takes_context = arguments.takes_context
    if takes_context:
        return AsyncContextJob if is_async else SyncContextJob
    return AsyncJob if is_async else SyncJob
