"""The lifespan of an app: what is set up before a worker claims its first job, and taken down after its last report."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, TypeAlias

from leasemill.errors import Invalid

Lifespan: TypeAlias = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Returns a context manager; what that yields is the `ctx.state` of handlers and hooks."""


@asynccontextmanager
async def entered(lifespan: Lifespan | None) -> AsyncIterator[Any]:
    """Inside the block what the lifespan sets up is there; yields the state. A sync one is entered on the loop."""
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
    """A generator whose decorator was forgotten is refused where it is written."""
    is_sync = inspect.isgeneratorfunction(lifespan)
    if is_sync or inspect.isasyncgenfunction(lifespan) or inspect.iscoroutinefunction(lifespan):
        manager = "contextmanager" if is_sync else "asynccontextmanager"
        name = lifespan_name(lifespan)
        raise Invalid(f"the lifespan {name} does not return a context manager: write @{manager} below @app.lifespan")


def lifespan_name(lifespan: object) -> str:
    return getattr(lifespan, "__qualname__", repr(lifespan))
