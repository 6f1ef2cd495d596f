"""The job types that `@app.job` and `app.named` return.

`@app.job` returns a `JobType` that is called as the function itself. Calling runs the function and nothing else: no
store, no hook, no retry. The four classes differ for type checkers, and for frameworks that look whether a callable is
async: such calls return a coroutine, and handlers with a `Context` take it first.

`app.named(kind, queue=...)` is for programs that do not have the handler's code. A kind that this app does not declare
has no signature here: its arguments are encoded as they are, and the worker that claims the job decides whether they
fit. What a declaration computes from them does not apply: a lane or a unique key must be set with `.options(...)`, and
the kind's limits do not apply to such a job.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar, overload

import msgspec

from leasemill.api.arguments import NO_ARGUMENTS, PREVIOUS, Arguments
from leasemill.api.call import HasStore
from leasemill.api.context import Context
from leasemill.api.hook_registry import DeclaresHooks
from leasemill.api.hooks import Hooks, RunHooks
from leasemill.api.job import JobType
from leasemill.api.json_types import ENCODING_ERRORS, Unfit, argument_sentence, encode_json, json_type
from leasemill.api.round_trip import non_finite
from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_name
from leasemill.kernel.model import Policy

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class HookedJob(JobType[P, R], DeclaresHooks):
    """A job that this program declares: it can have its own hooks, `@charge.on_failure`."""

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


class UncheckedArguments(Arguments):
    """The arguments of a kind whose signature is not known: any, by keyword."""

    def __init__(self, kind: str) -> None:
        super().__init__(_anything, Context)
        self.name = kind

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        if args:
            raise Invalid(
                f"{self.name}: this app does not declare it, so its parameters are not known: pass each by name"
            )
        for name, value in kwargs.items():
            if (found := non_finite(value)) is not None:
                raise Invalid(argument_sentence(self.name, name, *found))
        try:
            return encode_json(kwargs) if kwargs else NO_ARGUMENTS, kwargs
        except ENCODING_ERRORS:
            return encode_json({name: self._by_its_type(name, value) for name, value in kwargs.items()}), kwargs

    def _by_its_type(self, name: str, value: object) -> msgspec.Raw:
        """Encode an argument as a parameter of its type would be, such as a Pydantic model."""
        try:
            return msgspec.Raw(json_type(f"argument {name!r} of {self.name}", type(value)).encode(value)[0])
        except Unfit as error:
            raise Invalid(argument_sentence(self.name, name, error.at, error.text)) from None

    def encode_without_previous(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, dict[str, Any], str]:
        names = [name for name, value in kwargs.items() if value is PREVIOUS]
        if len(names) != 1:
            raise Invalid(f"{self.name}: pass PREVIOUS as one argument, by its name")
        payload, values = self.encode(args, {name: value for name, value in kwargs.items() if value is not PREVIOUS})
        return payload, values, names[0]


def named_job(app: HasStore, kind: str, queue: str, hooks: Hooks) -> JobType[..., Any]:
    """A kind that is declared elsewhere."""
    check_name("kind", kind)
    check_name("queue", queue)
    return JobType(
        app,
        _anything,
        UncheckedArguments(kind),
        kind=kind,
        aliases=(),
        queue=queue,
        lane=None,
        priority=0,
        policy=Policy(),
        is_async=False,
        hooks=hooks,
    )


def unknown_kind(kind: str, known: list[str]) -> NoReturn:
    declared = ", ".join(known) or "none"
    raise Invalid(
        f"this app does not declare {kind!r} (declared: {declared}): if another program declares it, pass the "
        "queue that its workers serve, queue=..."
    )


def _anything() -> Any:
    """Stand for the handler, which is in another program."""
