"""Decorators that declare hooks: `@app.on_failure` for every job, `@charge.on_failure` for one; `@app.on_enqueue`,
`lifespan`.

Nothing here calls a hook.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

from leasemill.api.context import Context
from leasemill.api.hooks import (
    EnqueueHook,
    EventHook,
    Hooks,
    Lifespan,
    RunHooks,
    check_lifespan,
    entered,
    lifespan_name,
)
from leasemill.errors import Invalid

RunHookT = TypeVar(
    "RunHookT", bound=Callable[[Context[Any]], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
)
EnqueueHookT = TypeVar("EnqueueHookT", bound=EnqueueHook)
EventHookT = TypeVar("EventHookT", bound=EventHook)
LifespanT = TypeVar("LifespanT", bound=Lifespan)


class DeclaresHooks(ABC):
    """The decorators that an app and a job have in common. The app's hooks come first, then the job's, in the order of
    declaration."""

    @property
    @abstractmethod
    def run_hooks(self) -> RunHooks:
        """The hooks that these decorators add to."""

    def around(self, hook: RunHookT) -> RunHookT:
        """`@app.around`, `@charge.around`: enter your own context manager around a run.

        The hook gets the run's `Context` and returns the context manager: write it with `@contextmanager`, for async
        handlers also with `@asynccontextmanager`. It is entered where the handler runs, in its thread, on the event
        loop or in its process. What the handler raises passes through it; what it raises itself fails the run.
        """
        self.run_hooks.around.append(_checked("around", hook))
        return hook

    def on_start(self, hook: EventHookT) -> EventHookT:
        """`@app.on_start`, `@charge.on_start`: called before the handler, which waits for it. Sync, or async.

        This and the other hooks get a `JobEvent`, and run in the worker's process: async ones on its event loop, sync
        ones in a thread. What they raise is logged, and changes nothing for the job.
        """
        self.run_hooks.on_start.append(_checked("on_start", hook))
        return hook

    def on_success(self, hook: EventHookT) -> EventHookT:
        """`@app.on_success`, `@charge.on_success`: called when the store has recorded that the job succeeded."""
        self.run_hooks.on_success.append(_checked("on_success", hook))
        return hook

    def on_retry(self, hook: EventHookT) -> EventHookT:
        """`@app.on_retry`, `@charge.on_retry`: called when it is recorded that a run failed and the job runs again."""
        self.run_hooks.on_retry.append(_checked("on_retry", hook))
        return hook

    def on_failure(self, hook: EventHookT) -> EventHookT:
        """`@app.on_failure`, `@charge.on_failure`: called when it is recorded that the job failed permanently.

        Its retries are used up, its error is not retried, or it was quarantined (DEAD).
        """
        self.run_hooks.on_failure.append(_checked("on_failure", hook))
        return hook

    def on_lost(self, hook: EventHookT) -> EventHookT:
        """`@app.on_lost`, `@charge.on_lost`: called when a run has lost its lease: another worker may have the job."""
        self.run_hooks.on_lost.append(_checked("on_lost", hook))
        return hook


class AppHooks(DeclaresHooks):
    """The hooks of an app."""

    def __init__(self) -> None:
        self.hooks = Hooks()

    @property
    def run_hooks(self) -> RunHooks:
        return self.hooks

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


def _checked(name: str, hook: Callable[..., Any]) -> Any:
    if not callable(hook):
        raise Invalid(f"{name} takes a function, not {hook!r}: write @app.{name} above it, without parentheses")
    return hook
