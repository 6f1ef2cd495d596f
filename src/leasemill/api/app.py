"""`App`: where jobs are declared, and which store they go to.

Declaring touches no store; it is opened when it is first used. Handlers are found by their registered kind, never
imported from a payload.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack, overload

from leasemill.api.argument_keys import LaneRule, lane_of
from leasemill.api.arguments import Arguments
from leasemill.api.call import Call
from leasemill.api.context import Context
from leasemill.api.enqueue_batch import StreamCount, aenqueue_all, aenqueue_stream, enqueue_all, enqueue_stream
from leasemill.api.group import AppGroups, GroupHandle, create_command
from leasemill.api.handle import JobHandle
from leasemill.api.hook_registry import AppHooks
from leasemill.api.job import JobType
from leasemill.api.job_types import (
    AsyncContextJob,
    AsyncJob,
    Declares,
    SyncContextJob,
    SyncJob,
    class_for,
    named_job,
    unknown_kind,
)
from leasemill.api.kinds import Kinds, listed_names
from leasemill.api.limits import AnyLimit, limits_of
from leasemill.api.observer import Observer
from leasemill.api.options import check_priority
from leasemill.api.policy import Duration, Executor, LeasePreset, OnFailureChoice, check_executor, run_policy
from leasemill.api.retry import RetryChoice, retry_of
from leasemill.api.schedules import CronOptions, Schedules
from leasemill.api.unique import AnyUnique, unique_rule
from leasemill.errors import Invalid, Unavailable
from leasemill.kernel.bounds import check_name
from leasemill.kernel.model import LimitTerms, OnFailure
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.url import choose_url, hidden_password

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
JobT = TypeVar("JobT", bound=JobType[..., Any])

DEFAULT_QUEUE: Final = "default"


class App(AppHooks):
    """The jobs of a program and the store they go to.

    The store is the one that `url` or `store` names, else that of the variable LEASEMILL_URL, else the folder
    `.leasemill` in the working directory. `include`: the names of modules that declare jobs; they are imported when the
    kinds are first needed, for example by a worker. `queue`, `retry`, `lease`, `timeout`: defaults for the app's jobs.
    """

    binding_refusal: ClassVar[str | None] = None
    """The reason why the pytest fixture `leasemill` must not bind apps of this class, and what to use instead; None: it
    may."""

    def __init__(
        self,
        url: str | None = None,
        *,
        store: Store | None = None,
        include: Iterable[str] = (),
        queue: str = DEFAULT_QUEUE,
        retry: RetryChoice | None = None,
        lease: Duration | LeasePreset | None = None,
        timeout: Duration | None = None,
    ) -> None:
        if url is not None and not isinstance(url, str):
            raise Invalid(f"the URL of the store is {url!r}; write text, for example App('file:./jobs')")
        self.url = choose_url(url)
        self._store = store
        self._opening = threading.Lock()
        self._is_bound = False
        self._kinds = Kinds(include)
        self._retry = retry_of(retry)
        run_policy(self._retry.policy(), lease, timeout)  # refused where it is written
        check_name("queue", queue)
        self._queue, self._lease, self._timeout = queue, lease, timeout
        super().__init__()
        self.observers: list[Observer] = []
        """Observers that workers notify: metrics, tracing. A worker takes them over when it is created."""
        self.schedules = Schedules(self, self._kinds.load)
        """Schedules at run time: `app.schedules.set(...)`, and what `app.cron` declared."""

    def __repr__(self) -> str:
        kinds = len(self._kinds)
        return f"<App {hidden_password(self.url)} with {kinds} kind{'' if kinds == 1 else 's'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def store(self) -> Store:
        """The store, opened at first use."""
        store = self._store
        if store is None:
            with self._opening:
                store = self._store
                if store is None:
                    try:
                        store = self._store = self._open()
                    except Unavailable as error:
                        error.add_note("the store could not be opened, so nothing was sent to it: repeat the same call")
                        raise
        return store

    @property
    def is_open(self) -> bool:
        """Return True if the store has been opened, or was passed in."""
        return self._store is not None

    def _open(self) -> Store:
        return open_store(self.url)

    @property
    def include(self) -> tuple[str, ...]:
        """The modules that declare jobs, by name."""
        return self._kinds.include

    @property
    def jobs(self) -> Mapping[str, JobType[..., Any]]:
        """Every declared job, by its kind."""
        return self._kinds.jobs

    @property
    def handlers(self) -> Mapping[str, JobType[..., Any]]:
        """Every declared job, by its kind and by its aliases: these are what a worker runs."""
        return self._kinds.handlers

    @property
    def queues(self) -> frozenset[str]:
        """The queues of the declared jobs: what a worker serves by default."""
        return frozenset(job.queue for job in self.jobs.values())

    @property
    def limits(self) -> Mapping[str, LimitTerms]:
        """The numbers of every declared limit, by its name: what a worker declares when it starts."""
        return self._kinds.limits

    def close(self) -> None:
        """Close the store; it is opened again at the next use. Inside `bound_to` it does nothing."""
        with self._opening:
            if self._is_bound:
                return  # the store is the block's; what would be opened instead is the one that the URL names
            store, self._store = self._store, None
        if store is not None:
            store.close()

    @contextmanager
    def bound_to(self, store: Store) -> Iterator[Self]:
        """Use another store inside the block: for tests, or to move jobs. The block does not close it."""
        with self._opening:
            before = self._store, self._is_bound
            self._store, self._is_bound = store, True
        try:
            yield self
        finally:
            with self._opening:
                self._store, self._is_bound = before

    @overload
    def job(  # type: ignore[overload-overlap]  # the first that fits is the one
        self, function: Callable[Concatenate[Context[S], P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextJob[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Context[S], P], R], /) -> SyncContextJob[P, R]: ...
    @overload
    def job(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncJob[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> SyncJob[P, R]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        queue: str | None = None,
        lane: LaneRule | None = None,
        priority: int = 0,
        retry: RetryChoice | None = None,
        lease: Duration | LeasePreset | None = None,
        timeout: Duration | None = None,
        max_expirations: int | None = None,
        on_failure: OnFailureChoice | OnFailure | None = None,
        limit: AnyLimit | Iterable[AnyLimit] | None = None,
        unique: AnyUnique | bool | None = None,
        executor: Executor | None = None,
    ) -> Declares: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        queue: str | None = None,
        lane: LaneRule | None = None,
        priority: int = 0,
        retry: RetryChoice | None = None,
        lease: Duration | LeasePreset | None = None,
        timeout: Duration | None = None,
        max_expirations: int | None = None,
        on_failure: OnFailureChoice | OnFailure | None = None,
        limit: AnyLimit | Iterable[AnyLimit] | None = None,
        unique: AnyUnique | bool | None = None,
        executor: Executor | None = None,
    ) -> Any:
        """Declare a job: `@app.job`, or `@app.job(queue=..., retry=..., ...)`.

        A handler is a function, async or not. A first parameter annotated with `Context` (or called `ctx`, without an
        annotation) receives the context; the others are the job's arguments.

        `name` is the job's kind (default: the function's name). `aliases` are kinds it had before: workers run jobs of
        those kinds too. `queue`: where its jobs wait (default: the app's). `priority`: 0 to 9, higher runs first.
        `lane` names the parameter whose value is the lane's key; a function of parameters computes the
        key; `FixedLane(key)` is one lane for all jobs. (In `.options(lane=...)` it is the key itself.)
        `limit`: how many may run at a time, `Limit(5)`, or start in a period, `Rate(100, per=60)`; or a list of them.
        `unique`: one job at a time for the same arguments, True or `Unique(...)`; `Debounce(...)`: run when calls have
        stopped; `Throttle(...)`: at most once in a period.
        `executor`: "process" runs the handler in a process of its own, which is killed when it times out or loses its
        lease; "thread" in the worker's. Default: the worker's choice.

        `retry`: how many times a failed job is retried, 0 for none, "default", "patient", or `Retry(...)`. `timeout`:
        how long a handler may run, in seconds or as a timedelta. `lease`: another worker may claim the job after this
        long without a heartbeat: seconds, "default", "heavy" or "external". `max_expirations`: how many runs may end
        without a report (their worker died) before the job is quarantined as DEAD. `on_failure`: what its lane does
        when the job has failed permanently: "continue", or "block" until an operator acts.
        """
        retried = retry_of(retry).over(self._retry)
        policy = run_policy(
            retried.policy(),
            self._lease if lease is None else lease,
            self._timeout if timeout is None else timeout,
            on_failure,
            max_expirations,
        )
        queue = self._queue if queue is None else queue
        check_name("queue", queue)
        check_priority(priority)
        if executor is not None:
            check_executor(executor)
        other_names = _checked_aliases(aliases)

        def declare(function: Callable[..., Any]) -> JobType[..., Any]:
            return declare_with(function, sys._getframe(1))

        def declare_with(function: Callable[..., Any], frame: FrameType) -> JobType[..., Any]:
            if not inspect.isfunction(function):
                raise Invalid(f"{function!r} is not a function; declare a job with `def` or `async def`")
            # A handler declared inside a function may be annotated with what is local there.
            arguments = Arguments(function, Context, frame.f_locals if "<locals>" in function.__qualname__ else None)
            is_async = inspect.iscoroutinefunction(function)
            job = class_for(arguments, is_async=is_async)(
                self,
                function,
                arguments,
                kind=name or function.__name__,
                aliases=other_names,
                queue=queue,
                lane=lane_of(lane, arguments),
                priority=priority,
                policy=policy,
                is_async=is_async,
                hooks=self.hooks,
                limits=limits_of(name or function.__name__, limit, arguments),
                unique=unique_rule(name or function.__name__, unique, arguments),
                retry=retried,
                executor=executor,
            )
            self._kinds.add(job)
            return job

        return declare if function is None else declare_with(function, sys._getframe(1))

    @overload
    def cron(self, when: str | timedelta, job: JobT, /, **options: Unpack[CronOptions]) -> JobT: ...
    @overload
    def cron(self, when: str | timedelta, /, **options: Unpack[CronOptions]) -> Callable[[JobT], JobT]: ...
    def cron(
        self, when: str | timedelta, job: JobType[..., Any] | None = None, /, **options: Unpack[CronOptions]
    ) -> Any:
        """Run a job on a schedule: `@app.cron("0 3 * * *", tz="UTC")` above `@app.job`, or `app.cron(when, job)`.

        `when`: a cron expression, or an interval, which is aligned to the epoch. `name`: the schedule's name (default:
        the job's kind). `args`: the job's arguments. `overlap`: what a tick does while an earlier job of the schedule
        has not ended: enqueue nothing ("skip", the default), let one job wait ("one"), let all wait ("queue"), or
        enqueue anyway ("allow"). `missed`: which ticks run when several are due: the "latest", "all" (of the last day,
        or of `catch_up`), or the latest if it is less than a minute late ("skip"). `jitter`: delay each job by up to
        this. Workers set declared schedules when they start, and fire them.
        """

        def declare(job: JobType[..., Any]) -> JobType[..., Any]:
            self.schedules.declare(when, job, options)
            return job

        return declare if job is None else declare(job)

    def named(self, kind: str, *, queue: str | None = None) -> JobType[..., Any]:
        """The job of this kind, to enqueue it without its handler's code.

        The arguments of a kind that this app declares are checked. Of one that it does not declare they are not, and
        `queue` must be given: the one that the workers of the handler's program serve.
        """
        job = self.handlers.get(kind)
        if job is not None:
            return job if queue is None else job.options(queue=queue)
        if queue is None:
            unknown_kind(kind, sorted(self.jobs))
        return named_job(self, kind, queue, self.hooks)

    def enqueue(self, kind: str, /, *, queue: str | None = None, **arguments: Any) -> JobHandle[Any]:
        """Enqueue a job by its name: `app.named(kind, queue=queue).enqueue(**arguments)`."""
        return self._named_for(kind, queue).enqueue(**arguments)

    async def aenqueue(self, kind: str, /, *, queue: str | None = None, **arguments: Any) -> JobHandle[Any]:
        """`enqueue` in async code."""
        return await self._named_for(kind, queue).aenqueue(**arguments)

    def _named_for(self, kind: str, queue: str | None) -> JobType[..., Any]:
        job = self.named(kind, queue=queue)
        if "queue" in job.arguments.names:
            raise Invalid(f"{kind} has a parameter 'queue': write app.named({kind!r}).enqueue(queue=...)")
        return job

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Enqueue calls of any kinds, made with `job.call(...)`, and return their handles."""
        return enqueue_all(self, calls)

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """`enqueue_many` in async code."""
        return await aenqueue_all(self, calls)

    def enqueue_stream(self, calls: Iterable[Call[Any]]) -> StreamCount:
        """Enqueue any number of calls, of any kinds, as they come; returns the counts, keeps no call in memory."""
        return enqueue_stream(self, calls)

    async def aenqueue_stream(self, calls: Iterable[Call[Any]] | AsyncIterable[Call[Any]]) -> StreamCount:
        """`enqueue_stream` in async code; the calls may come from an async generator."""
        return await aenqueue_stream(self, calls)

    def group(
        self,
        group_id: str | None = None,
        *,
        then: Call[Any] | None = None,
        on_end: Call[Any] | None = None,
        parent: str | GroupHandle | None = None,
    ) -> GroupHandle:
        """A group of jobs with a callback: `with app.group("import-17", then=report.call("17")) as group`.

        The group is sealed when the block ends without an error: it takes no more members, except those that its
        members add in their commits. When all members have succeeded, `then` is enqueued. When all have ended, in
        any state, `on_end` is. `parent`: a group of which this one is a member.
        """
        within = parent.id if isinstance(parent, GroupHandle) else parent
        return GroupHandle(self, create_command(self, group_id, then, on_end, within), is_created=False)

    @property
    def groups(self) -> AppGroups:
        """Groups made elsewhere: `app.groups.get(group_id)`."""
        return AppGroups(self)

    def handle(self, job_id: str) -> JobHandle[Any]:
        """The handle of a job enqueued earlier, or elsewhere; its result is plain JSON values."""
        return JobHandle(self.store, job_id, None)


def _checked_aliases(aliases: Iterable[str]) -> tuple[str, ...]:
    checked = listed_names("aliases", aliases)
    for alias in checked:
        check_name("alias", alias)
    return checked
