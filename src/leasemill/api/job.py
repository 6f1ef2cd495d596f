"""What a declared job is to its callers: enqueue it, and ask for the job that came of it.

`JobType` is what `@app.job` gives, `Call` one call of it that is not sent yet, `JobHandle` a job in the store. Nothing
here runs a handler.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from leasemill.api.arguments import Arguments, lane_key
from leasemill.api.policy import Duration, is_whole, microseconds
from leasemill.errors import Invalid, JobCancelled, JobConflict, JobDead, JobFailed, NoResult, NotFound, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.limits import BATCH_ITEMS
from leasemill.kernel.model import ENDED_STATES, SECOND, Job, JobSpec, JobState, Policy
from leasemill.store.base import Store

if TYPE_CHECKING:
    import psycopg

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

BATCH_BYTES: Final = 16 * 1024 * 1024
LONGEST_WAIT_S: Final = 60.0
"""A job is looked at again after this time, though nothing has woken its waiter."""
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class HasStore(Protocol):
    @property
    def store(self) -> Store: ...


@dataclass(frozen=True, slots=True)
class FixedLane:
    """One lane for every job of a kind, by its name."""

    key: str


LaneRule: TypeAlias = str | FixedLane | Callable[..., object]
"""In `@app.job`: the name of the parameter whose value is the lane's key, a function of parameters that computes it, or
`FixedLane(key)`, one lane for all jobs of the kind."""


@dataclass(frozen=True, slots=True)
class Options:
    """What one enqueue may say differently from the declaration."""

    delay_us: int = 0
    run_at: int | None = None
    priority: int | None = None
    job_id: str | None = None
    lane: str | None = None


class JobType(Generic[P, R]):
    """A kind of job: its handler, where it goes, how it may be run."""

    def __init__(
        self,
        app: HasStore,
        function: Callable[..., Any],
        arguments: Arguments,
        *,
        kind: str,
        aliases: tuple[str, ...] = (),
        queue: str,
        lane: Callable[[dict[str, Any]], object] | None,
        priority: int,
        policy: Policy,
        is_async: bool,
        options: Options | None = None,
    ) -> None:
        self.app = app
        self.function = function
        self.arguments = arguments
        self.kind = kind
        self.aliases = aliases
        self.queue = queue
        self.priority = priority
        self.policy = policy
        self.is_async = is_async
        self._lane = lane
        self._options = options or Options()

    def __repr__(self) -> str:
        return f"<job {self.kind!r} in queue {self.queue!r}>"

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call that is checked and has its id, and is not sent yet: for `enqueue_many`."""
        given = self._options.job_id
        job_id = self.app.store.entropy.new_id() if given is None else given
        return Call(self._spec(job_id, args, kwargs), self.arguments, is_new=given is None)

    def _spec(self, job_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec:
        options = self._options
        payload, values = self.arguments.encode(args, kwargs)
        lane = options.lane
        if lane is None and self._lane is not None:
            lane = lane_key(self.kind, self._lane(values))
        return JobSpec(
            job_id,
            self.queue,
            self.kind,
            payload,
            lane,
            self.priority if options.priority is None else options.priority,
            options.run_at,
            options.delay_us,
        )

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Hand the job over; it is durable when this returns."""
        return enqueue_all(self.app.store, [self.call(*args, **kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` in async code."""
        return (await aenqueue_all(self.app.store, [self.call(*args, **kwargs)]))[0]

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Hand over many calls, made with `call`, in as few steps as the store allows."""
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
    ) -> JobType[P, R]:
        """The same job with other settings for what is enqueued through it; what is left out stays as it was.

        `delay` or `run_at`: not before then. `priority`: 0 to 9, higher first. `job_id`: an id of your own; the same id
        and content again changes nothing while the job is kept (by default for 24 hours after it succeeded; then the id
        is free, and makes a new job). `lane`: the lane's key itself, such as "customer-7", not the name of a parameter
        as in `@app.job(lane=...)`.
        """
        options = self._options
        if delay is not None and run_at is not None:
            raise Invalid("delay and run_at exclude each other: give one of them")
        if delay is not None:
            options = replace(options, delay_us=microseconds("delay", delay), run_at=None)
        if run_at is not None:
            options = replace(options, run_at=_instant(run_at), delay_us=0)
        if priority is not None:
            options = replace(options, priority=check_priority(priority))
        options = replace(
            options,
            job_id=options.job_id if job_id is None else job_id,
            lane=options.lane if lane is None else lane,
        )
        return self._like(self.app, options)

    def using(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> JobType[P, R]:
        """The same job, enqueued in the transaction of a connection of yours: it is there when you commit.

        On PostgreSQL, with a connection to the store's database. Nothing is begun, committed, rolled back or repeated
        on it; errors of its own come as psycopg raises them.
        """
        return self._like(_Using(self.app, connection), self._options)

    def _like(self, app: HasStore, options: Options) -> JobType[P, R]:
        return JobType(
            app,
            self.function,
            self.arguments,
            kind=self.kind,
            aliases=self.aliases,
            queue=self.queue,
            lane=self._lane,
            priority=self.priority,
            policy=self.policy,
            is_async=self.is_async,
            options=options,
        )

    def followup(self, *args: P.args, **kwargs: P.kwargs) -> c.Followup:
        """The call as part of a commit; its id follows from the committing job's (X6)."""
        if self._options.job_id is not None:
            raise Invalid(f"a follow-up {self.kind} has no job_id of its own: its id follows from the committing job's")
        spec = self._spec("", args, kwargs)
        return c.Followup(
            spec.queue, spec.kind, spec.payload, spec.lane, spec.priority, spec.run_at, spec.delay_us, spec.policy
        )


class _Using:
    """An app whose store is bound to a caller's connection."""

    def __init__(self, app: HasStore, connection: object) -> None:
        self._app = app
        self._connection = connection

    @property
    def store(self) -> Store:
        return self._app.store.using(self._connection)


def check_priority(priority: int) -> int:
    if not is_whole(priority) or not 0 <= priority <= 9:
        raise Invalid(f"priority is {priority!r}; write a whole number from 0 to 9, higher runs first")
    return priority


def _instant(run_at: datetime) -> int:
    if run_at.tzinfo is None or run_at.utcoffset() is None:
        raise Invalid(f"run_at {run_at.isoformat()} has no time zone; write datetime(..., tzinfo=UTC) or .astimezone()")
    return (run_at - _EPOCH) // timedelta(microseconds=1)


class Call(Generic[R_co]):
    """One checked call with its id. Enqueueing it again after an `Unavailable` is safe: it is the same job."""

    __slots__ = ("_is_new", "arguments", "spec")

    def __init__(self, spec: JobSpec, arguments: Arguments, *, is_new: bool) -> None:
        self.spec = spec
        self.arguments = arguments
        self._is_new = is_new

    @property
    def job_id(self) -> str:
        return self.spec.id

    def is_sent_first(self) -> bool:
        """True once, for an id that was drawn for this call: nobody can know it yet."""
        is_new, self._is_new = self._is_new, False
        return is_new


# Enqueueing ----------------------------------------------------------------------------------------------------


def enqueue_all(store: Store, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
    """Enqueue calls of any kinds; the first conflict is raised when all have been sent."""
    handles: list[JobHandle[R]] = []
    for batch in _batches(calls):
        try:
            outcomes = store.run(_command(batch))
        except Unavailable as error:
            _say_how_to_repeat(error, batch)
            raise
        handles += _handles(store, batch, outcomes)
    return _without_conflict(handles)


async def aenqueue_all(store: Store, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
    """`enqueue_all` in async code."""
    handles: list[JobHandle[R]] = []
    for batch in _batches(calls):
        try:
            outcomes = await store.arun(_command(batch))
        except Unavailable as error:
            _say_how_to_repeat(error, batch)
            raise
        handles += _handles(store, batch, outcomes)
    return _without_conflict(handles)


def _command(batch: list[Call[R]]) -> c.Enqueue:
    firsts = [call.is_sent_first() for call in batch]  # of every call, so that none counts as new again
    return c.Enqueue([call.spec for call in batch], are_new=all(firsts))


def _batches(calls: Iterable[Call[R]]) -> Iterator[list[Call[R]]]:
    batch: list[Call[R]] = []
    size = 0
    for call in calls:
        if len(batch) == BATCH_ITEMS or (size + len(call.spec.payload) > BATCH_BYTES and batch):
            yield batch
            batch, size = [], 0
        batch.append(call)
        size += len(call.spec.payload)
    if batch:
        yield batch


def _handles(store: Store, batch: list[Call[R]], outcomes: list[c.EnqueueOutcome]) -> list[JobHandle[R]]:
    return [
        JobHandle(store, call.spec.id, call.arguments, outcome) for call, outcome in zip(batch, outcomes, strict=True)
    ]


def _without_conflict(handles: list[JobHandle[R]]) -> list[JobHandle[R]]:
    for handle in handles:
        if isinstance(handle.outcome, c.Conflict):
            raise JobConflict(handle.id)
    return handles


def _say_how_to_repeat(error: Unavailable, batch: list[Call[R]]) -> None:
    if len(batch) == 1:
        error.add_note(f"the job may or may not be there: repeat with .options(job_id={batch[0].spec.id!r})")


# The handle ----------------------------------------------------------------------------------------------------


class JobHandle(Generic[R_co]):
    """A job in the store: how it stands, and what came of it."""

    __slots__ = ("_arguments", "_store", "id", "outcome")

    def __init__(
        self,
        store: Store,
        job_id: str,
        arguments: Arguments | None,
        outcome: c.EnqueueOutcome | None = None,
    ) -> None:
        self.id = job_id
        self.outcome = outcome
        self._store = store
        self._arguments = arguments

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    @property
    def is_duplicate(self) -> bool:
        """The id was known with the same content, so enqueueing it changed nothing (E2)."""
        return isinstance(self.outcome, c.Duplicate)

    def record(self) -> Job:
        """Everything the store knows of the job: its state, every execution, every refused report."""
        return self._known(self._store.job(self.id))

    async def arecord(self) -> Job:
        """`record` in async code."""
        return self._known(await self._store.ajob(self.id))

    def status(self) -> JobState:
        """READY, LEASED, SUCCEEDED, FAILED, DEAD or CANCELLED."""
        return self.record().state

    async def astatus(self) -> JobState:
        """`status` in async code."""
        return (await self.arecord()).state

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the job has ended, and give its result.

        Raises JobFailed, JobDead, JobCancelled, or TimeoutError if it has not ended in time.
        """
        deadline = _Deadline(self.id, timeout)
        job = self.record()
        if has_ended(job):
            return self._result_of(job)
        watch = self._store.watch_end(self.id)
        try:
            while not has_ended(job := self.record()):
                watch.wait(deadline.left_s(job.state))
            return self._result_of(job)
        finally:
            watch.close()

    async def aresult(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 (the same call as `result`)
        """`result` in async code."""
        deadline = _Deadline(self.id, timeout)
        job = await self.arecord()
        if has_ended(job):
            return self._result_of(job)
        watch = self._store.watch_end(self.id)
        try:
            while not has_ended(job := await self.arecord()):
                await watch.wait_async(deadline.left_s(job.state))
            return self._result_of(job)
        finally:
            watch.close()

    def _known(self, job: Job | None) -> Job:
        if job is None:
            raise NotFound(
                f"there is no job {self.id!r} (any more): it was purged, pruned, or never enqueued (or "
                "in a transaction that has not committed)"
            )
        return job

    def _result_of(self, job: Job) -> R_co:
        if job.state is JobState.FAILED:
            raise JobFailed(self.id, job.executions[-1].error or "no error was reported")
        if job.state is JobState.DEAD:
            raise JobDead(self.id, f"quarantined: {job.expirations} of its runs ended with their worker or their lease")
        if job.state is JobState.CANCELLED:
            raise JobCancelled(self.id, _why_cancelled(job))
        if self._arguments is None:
            content: R_co = msgspec.json.decode(job.result or b"null")
            return content
        try:
            result: R_co = self._arguments.decode_result(job.result)
        except msgspec.ValidationError as error:
            if job.result is None:
                raise NoResult(
                    self.id, "succeeded without a result: its commit set none (tx.set_result), and after a commit "
                    "what the handler returns is not kept"
                ) from None  # fmt: skip
            raise NoResult(self.id, f"has a result that does not fit the declared type: {error}") from None
        return result


class _Deadline:
    """How long to wait for the job's end at most."""

    def __init__(self, job_id: str, timeout: Duration | None) -> None:
        self._job_id = job_id
        self._at_s = math.inf if timeout is None else time.monotonic() + microseconds("timeout", timeout) / SECOND

    def left_s(self, state: JobState) -> float:
        left_s = self._at_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"job {self._job_id!r} has not ended in time; it is {state}")
        return min(left_s, LONGEST_WAIT_S)


def has_ended(job: Job) -> bool:
    return job.state in ENDED_STATES


def _why_cancelled(job: Job) -> str:
    cancellation = job.cancellation
    return "by an operator" if cancellation is None else f"by {cancellation.by}: {cancellation.reason}"
