"""`JobType`: what `@app.job` returns. Nothing here runs a handler."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import WRAPPER_ASSIGNMENTS
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypeVar, Unpack

from leasemill.api.argument_keys import KeyOf, key_text
from leasemill.api.arguments import PREVIOUS, Arguments
from leasemill.api.call import Call, HasStore
from leasemill.api.enqueue_batch import StreamCount, aenqueue_all, aenqueue_stream, enqueue_all, enqueue_stream
from leasemill.api.handle import JobHandle
from leasemill.api.hooks import Hooks, RunHook, RunHooks
from leasemill.api.limits import KindLimits
from leasemill.api.options import EnqueueOptions, Options
from leasemill.api.policy import Executor
from leasemill.api.retry import Retry
from leasemill.api.unique import KindUnique, delay_of, unique_key
from leasemill.errors import Invalid
from leasemill.kernel.model import JobSpec, Policy, Rules
from leasemill.store.base import Store

P = ParamSpec("P")
R = TypeVar("R")

ELSEWHERE: Final = {
    "delay": "enqueue(...), or to run it later .options(delay=5).enqueue(...)",
    "apply_async": "options(delay=5).enqueue(...)",
    "send": "enqueue(...)",
    "send_with_options": "options(delay=5).enqueue(...)",
    "defer": "enqueue(...)",
    "schedule": "options(delay=5).enqueue(...), or @app.cron(...) for a schedule",
    "enqueue_in": "options(delay=5).enqueue(...)",
    "enqueue_at": "options(run_at=...).enqueue(...)",
    "s": "call(...)",
    "si": "call(...)",
    "signature": "call(...)",
}
"""Names of methods in other libraries, with the names that they have here."""


class OfFunction:
    """The attributes that a job takes from its function, as with `functools.wraps`."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]


@dataclass(eq=False, repr=False)
class JobType(OfFunction, Generic[P, R]):
    """A kind of job: its handler, its queue and its policy. `@app.job` and `app.named(kind)` return one.

    `enqueue(...)` takes the handler's arguments; `options(...)` changes settings for one job; `call(...)` makes a call
    for chains, groups and `enqueue_many`.
    """

    app: HasStore
    function: Callable[..., Any]
    arguments: Arguments
    kind: str
    aliases: tuple[str, ...]
    queue: str
    lane: KeyOf | None
    priority: int
    policy: Policy
    is_async: bool
    hooks: Hooks
    limits: KindLimits | None = None
    unique: KindUnique | None = None
    executor: Executor | None = None
    """The executor of its handler; None: the worker decides."""
    retry: Retry = field(default_factory=Retry)
    """After which errors a handler is run again."""
    chosen: Options = field(default_factory=Options)
    own_hooks: RunHooks = field(default_factory=RunHooks)

    def __post_init__(self) -> None:
        self.__wrapped__ = self.function
        for name in WRAPPER_ASSIGNMENTS:
            if hasattr(self.function, name):
                setattr(self, name, getattr(self.function, name))

    if not TYPE_CHECKING:  # or a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            """The names by which other libraries enqueue are refused with what to write here."""
            known = ELSEWHERE.get(name)
            hint = "" if known is None else f"; write {self.__dict__.get('kind', 'job')}.{known}"
            raise AttributeError(f"a job has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        return f"<job {self.kind!r} in queue {self.queue!r}>"

    @property
    def around_hooks(self) -> list[RunHook]:
        """The hooks that are entered around a run: the app's, then the job's own."""
        return self.hooks.around + self.own_hooks.around if self.own_hooks.around else self.hooks.around

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A checked call with an id, not enqueued yet: for `enqueue_many`, chains and groups."""
        given = self.chosen.job_id
        return self._call(self.app.store.entropy.new_id() if given is None else given, args, kwargs)

    def _call(self, job_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R]:
        taken: str | None = None
        try:
            payload, values = self.arguments.encode(args, kwargs)
        except Invalid:
            if not any(value is PREVIOUS for value in (*args, *kwargs.values())):
                raise
            payload, values, taken = self.arguments.encode_without_previous(args, kwargs)
        try:
            spec = self._spec(job_id, payload, values)
            if taken is not None and self.unique is not None and self.unique.is_by_all and self.chosen.unique is None:
                raise KeyError(taken)
        except KeyError as error:
            if taken is None or error.args != (taken,):
                raise
            raise Invalid(
                f"{self.kind}: argument {taken!r} is PREVIOUS, so a lane or a key cannot be computed from it yet: set "
                "it with .options(lane=...) or .options(unique=...)"
            ) from None
        has_drawn_id = self.chosen.job_id is None
        return Call(self.app, spec, self.arguments, has_drawn_id=has_drawn_id, result_name=taken)

    def _spec(self, job_id: str, payload: bytes, values: dict[str, Any]) -> JobSpec:
        options = self.chosen
        lane = options.lane
        if lane is None and self.lane is not None:
            lane = key_text(f"the lane of {self.kind}", self.lane(values))
        limits = () if self.limits is None else self.limits.of(values)
        unique = None
        if self.unique is not None or options.unique is not None:
            unique = unique_key(self.unique, options.unique, payload, values)
        queue = self.queue if options.queue is None else options.queue
        return JobSpec(
            job_id,
            queue,
            self.kind,
            payload,
            lane,
            self.priority if options.priority is None else options.priority,
            options.run_at,
            delay_of(self.unique, unique, options.delay_us, options.run_at),
            options.policy,
            headers=self.hooks.headers(self.kind, queue, options.headers),
            rules=None if unique is None and not limits else Rules(unique, limits),
        )

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue the job; it is durable when this returns."""
        return enqueue_all(self.app, [self.call(*args, **kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` in async code."""
        return (await aenqueue_all(self.app, [self.call(*args, **kwargs)]))[0]

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Enqueue many calls, made with `call`, in as few steps as the store allows, and return their handles."""
        return enqueue_all(self.app, calls)

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """`enqueue_many` in async code."""
        return await aenqueue_all(self.app, calls)

    def enqueue_stream(self, calls: Iterable[Call[Any]]) -> StreamCount:
        """Enqueue any number of calls as they come; returns the counts, keeps no call in memory."""
        return enqueue_stream(self.app, calls)

    async def aenqueue_stream(self, calls: Iterable[Call[Any]] | AsyncIterable[Call[Any]]) -> StreamCount:
        """`enqueue_stream` in async code; the calls may come from an async generator."""
        return await aenqueue_stream(self.app, calls)

    def options(self, **options: Unpack[EnqueueOptions]) -> Self:
        """The same job with other settings for what is enqueued through it; what is left out stays unchanged.

        `delay` or `run_at`: do not run it before. `priority`: 0 to 9, higher first. `job_id`: your own id; the same id
        and content again changes nothing while the job is kept (by default for 24 hours after it succeeded; then the
        id makes a new job). `queue`: another queue, which some worker must serve. `retry`, `lease` and `timeout`
        override those of the queue and of the kind. `lane`: the lane's key itself, such as
        "customer-7", not the name of a parameter as in `@app.job(lane=...)`. `headers`: short texts that travel with
        the job and are not its content; read them with `ctx.headers`. `unique`: your own key, which kinds may
        share: while a job holds it, no other job is made for it.
        """
        other = copy(self)  # as it is, its function's name included: often called once for each job
        other.chosen = self.chosen.changed(options)
        return other

    def using(self, connection: object) -> JobType[P, R]:
        """The same job, enqueued in the transaction of your own connection or session: it exists when you commit.

        On PostgreSQL, with a connection to the store's database: of psycopg, psycopg2, asyncpg or SQLAlchemy, or the
        alias of one of Django's. Nothing is begun, committed, rolled back or repeated on it; its errors are its
        driver's.
        """
        return replace(self, app=_Using(self.app, connection))

    def followup_call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call for a commit, which derives its id from the committing job's."""
        return self._call("", args, kwargs)


@dataclass(frozen=True, slots=True)
class _Using:
    """An app whose store is bound to a caller's connection."""

    app: HasStore
    connection: object

    @property
    def store(self) -> Store:
        return self.app.store.using(self.connection)

    @property
    def hooks(self) -> Hooks:
        return self.app.hooks
