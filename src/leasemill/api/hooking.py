"""What declares hooks: `@app.around`, `@app.on_enqueue`, `@app.lifespan`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

from leasemill.api.context import Context
from leasemill.api.hooks import EnqueueHook, Hooks
from leasemill.api.lifespan import Lifespan, check_lifespan, entered, lifespan_name
from leasemill.errors import Invalid

RunHookT = TypeVar(
    "RunHookT", bound=Callable[[Context[Any]], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
)
EnqueueHookT = TypeVar("EnqueueHookT", bound=EnqueueHook)
LifespanT = TypeVar("LifespanT", bound=Lifespan)


class AppHooks:
    """The hooks of an app."""

    def __init__(self) -> None:
        self.hooks = Hooks()

    def around(self, hook: RunHookT) -> RunHookT:
        """`@app.around`: enter a context manager of yours around every run, in the order of declaration.

        The hook gets the run's `Context` and returns the context manager: write it with `@contextmanager`, for async
        handlers also with `@asynccontextmanager`. It is entered where the handler runs, in its thread or on the event
        loop. What the handler raises passes through it; what it raises itself fails the run.
        """
        self.hooks.around.append(hook)
        return hook

    def on_enqueue(self, hook: EnqueueHookT) -> EnqueueHookT:
        """`@app.on_enqueue`: called with every job that is about to be enqueued, and may add to its headers.

        It runs where the call is made, once for each job, follow-ups too. Headers are not part of a job's content.
        """
        self.hooks.on_enqueue.append(hook)
        return hook

    def lifespan(self, lifespan: LifespanT) -> LifespanT:
        """`@app.lifespan`: set up what handlers need before a worker's first claim, take it down after its last report.

        A function without parameters that returns a context manager: write it with `@asynccontextmanager` or
        `@contextmanager`. What it yields is `ctx.state`. One that fails to start ends the worker, and nothing was
        claimed. An app has one lifespan; several things are set up inside it.
        """
        if self.hooks.lifespan is not None:
            raise Invalid(
                f"this app has a lifespan, {lifespan_name(self.hooks.lifespan)}: set up inside it what "
                f"{lifespan_name(lifespan)} does"
            )
        check_lifespan(lifespan)
        self.hooks.lifespan = lifespan
        return lifespan

    def entered_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """`async with app.entered_lifespan() as state`: for where no worker enters it, such as a script."""
        return entered(self.hooks.lifespan)
