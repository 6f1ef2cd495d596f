"""`JobType`: what `@app.job` returns. Nothing here runs a handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar

import msgspec

from leasemill.api.arguments import PREVIOUS, Arguments, lane_key
from leasemill.api.call import Call, HasStore, aenqueue_all, enqueue_all
from leasemill.api.handle import JobHandle
from leasemill.api.hooks import Hooks
from leasemill.api.limits import KindLimits
from leasemill.api.policy import Duration, is_whole, microseconds
from leasemill.api.unique import KindUnique, check_own_key, delay_of, unique_key
from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_headers
from leasemill.kernel.model import JobSpec, Policy, Rules
from leasemill.store.base import Store

P = ParamSpec("P")
R = TypeVar("R")

_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class FixedLane:
    """One lane for every job of a kind, by its name."""

    key: str


LaneRule: TypeAlias = str | FixedLane | Callable[..., object]
"""In `@app.job`: the name of the parameter whose value is the lane's key, a function of parameters that computes it, or
`FixedLane(key)`, one lane for all jobs of the kind."""


class Options(msgspec.Struct, frozen=True):
    """What one enqueue may override of the declaration."""

    delay_us: int = 0
    run_at: int | None = None
    priority: int | None = None
    job_id: str | None = None
    lane: str | None = None
    headers: dict[str, str] | None = None
    unique: str | None = None


@dataclass(eq=False, repr=False)
class JobType(Generic[P, R]):
    """A kind of job: its handler, its queue and its policy."""

    app: HasStore
    function: Callable[..., Any]
    arguments: Arguments
    kind: str
    aliases: tuple[str, ...]
    queue: str
    lane: Callable[[dict[str, Any]], object] | None
    """The lane's key, computed from the arguments by name."""
    priority: int
    policy: Policy
    is_async: bool
    hooks: Hooks
    limits: KindLimits | None = None
    unique: KindUnique | None = None
    chosen: Options = field(default_factory=Options)

    def __repr__(self) -> str:
        return f"<job {self.kind!r} in queue {self.queue!r}>"

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call that is checked and has its id, and is not sent yet: for `enqueue_many`."""
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
                f"{self.kind}: argument {taken!r} is PREVIOUS, and not known yet where a lane or a key is computed "
                "from it: pass it by hand, with .options(lane=...) or .options(unique=...)"
            ) from None
        has_drawn_id = self.chosen.job_id is None
        return Call(self.app, spec, self.arguments, has_drawn_id=has_drawn_id, result_name=taken)

    def _spec(self, job_id: str, payload: bytes, values: dict[str, Any]) -> JobSpec:
        options = self.chosen
        lane = options.lane
        if lane is None and self.lane is not None:
            lane = lane_key(self.kind, self.lane(values))
        limits = () if self.limits is None else self.limits.of(values)
        unique = None
        if self.unique is not None or options.unique is not None:
            unique = unique_key(self.unique, options.unique, payload, values)
        return JobSpec(
            job_id,
            self.queue,
            self.kind,
            payload,
            lane,
            self.priority if options.priority is None else options.priority,
            options.run_at,
            delay_of(self.unique, unique, options.delay_us, options.run_at),
            headers=self.hooks.headers(self.kind, self.queue, options.headers),
            rules=None if unique is None and not limits else Rules(unique, limits),
        )

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue the job; it is durable when this returns."""
        return enqueue_all(self.app.store, [self.call(*args, **kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` in async code."""
        return (await aenqueue_all(self.app.store, [self.call(*args, **kwargs)]))[0]

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Enqueue many calls, made with `call`, in as few steps as the store allows."""
        return enqueue_all(self.app.store, calls)

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """`enqueue_many` in async code."""
        return await aenqueue_all(self.app.store, calls)

    def options(
        self,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        job_id: str | None = None,
        lane: str | None = None,
        headers: Mapping[str, str] | None = None,
        unique: str | None = None,
    ) -> JobType[P, R]:
        """The same job with other settings for what is enqueued through it; what is left out stays as it was.

        `delay` or `run_at`: not before then. `priority`: 0 to 9, higher first. `job_id`: an id of your own; the same id
        and content again changes nothing while the job is kept (by default for 24 hours after it succeeded; then the id
        is free, and makes a new job). `lane`: the lane's key itself, such as "customer-7", not the name of a parameter
        as in `@app.job(lane=...)`. `headers`: short texts that travel with the job and are not its content; read them
        with `ctx.headers`. `unique`: a key of your own, which kinds may share: while a job holds it, no other is made
        for it.
        """
        if delay is not None and run_at is not None:
            raise Invalid("delay and run_at exclude each other: use one of them")
        changes: dict[str, Any] = {}
        if delay is not None:
            changes |= {"delay_us": microseconds("delay", delay), "run_at": None}
        if run_at is not None:
            changes |= {"run_at": _instant(run_at), "delay_us": 0}
        if priority is not None:
            changes["priority"] = check_priority(priority)
        if job_id is not None:
            changes["job_id"] = job_id
        if lane is not None:
            changes["lane"] = lane
        if headers is not None:
            check_headers(given := dict(headers))
            changes["headers"] = given
        if unique is not None:
            changes["unique"] = check_own_key(unique)
        return replace(self, chosen=msgspec.structs.replace(self.chosen, **changes))

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


def check_priority(priority: int) -> int:
    if not is_whole(priority) or not 0 <= priority <= 9:
        raise Invalid(f"priority is {priority!r}; write a whole number from 0 to 9, higher runs first")
    return priority


def _instant(run_at: datetime) -> int:
    if run_at.tzinfo is None or run_at.utcoffset() is None:
        raise Invalid(f"run_at {run_at.isoformat()} has no time zone; write datetime(..., tzinfo=UTC) or .astimezone()")
    return (run_at - _EPOCH) // timedelta(microseconds=1)
