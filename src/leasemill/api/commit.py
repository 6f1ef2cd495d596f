"""The commit boundary: `with ctx.commit() as tx`, `async with ctx.commit() as tx`.

Inside the block `tx` gathers what takes effect with the commit; leaving it sends all of that, once. What must never
happen: a commit sent twice with different content, or a block that ends normally although the store did not confirm the
commit.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, assert_never

from leasemill.api.call import Call
from leasemill.api.handle import JobHandle
from leasemill.api.job import JobType
from leasemill.api.lease_loss import NOT_EXTENDED, LossSignal
from leasemill.api.policy import is_on_event_loop
from leasemill.errors import Invalid, JobConflict, LeaseLost, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.verbs.commit import followup_id
from leasemill.store.backoff import backoff_s
from leasemill.store.base import Block, Store

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql
    from psycopg.abc import Params

    Query: TypeAlias = str | bytes | sql.SQL | sql.Composed

P = ParamSpec("P")
R = TypeVar("R")
AnswerT = TypeVar("AnswerT")
SyncT = TypeVar("SyncT", bound="Gathered")
AsyncT = TypeVar("AsyncT", bound="Gathered")


class Handling(Protocol):
    """The part of a run that its commit needs; `Context` implements it."""

    lost: LossSignal
    commit_sent: c.Commit | None
    open_commit: Gathered | None

    @property
    def seconds_left(self) -> float: ...


class Gathered:
    """Follow-up jobs and the result, which take effect with the commit."""

    def __init__(self, store: Store, lease: c.Lease, job: JobType[..., Any], block: Block) -> None:
        self._store = store
        self._lease = lease
        self._job = job
        self._block = block
        self._followups: list[c.Followup] = []
        self._handles: list[JobHandle[Any]] = []
        self._result: bytes | None = None
        self._is_open = True

    def enqueue(self, job: JobType[P, R], *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a follow-up job as part of the commit."""
        return self.enqueue_call(job.followup_call(*args, **kwargs))

    def enqueue_call(self, call: Call[R]) -> JobHandle[R]:
        """`enqueue` for a call made with `job.call(...)`; its id is derived from this job's."""
        self._check_open()
        self._followups.append(call.followup(self._job.hooks))
        handle = call.handle(self._store, followup_id(self._lease.job.id, len(self._followups) - 1))
        self._handles.append(handle)
        return handle

    def set_result(self, value: object) -> None:
        """Set the job's result: what the handler returns after a commit is dropped."""
        self._check_open()
        self._result = self._job.arguments.encode_result(value, "called tx.set_result with")

    def settle_ids(self, ids: Sequence[str]) -> None:
        """U5: the handle of a follow-up that was merged is that of the job that holds its key."""
        for index, (handle, job_id) in enumerate(zip(self._handles, ids, strict=False)):
            derived = followup_id(self._lease.job.id, index)
            if job_id != derived and handle.id == derived:  # not that of a chain
                handle.id, handle.outcome = job_id, c.Merged(job_id)

    def _check_open(self) -> None:
        if not self._is_open:
            raise Invalid("this commit is not open: use it inside its `with` or `async with` block")

    def _command(self) -> c.Commit:
        return c.Commit(self._lease.job.id, self._lease.token, self._result, tuple(self._followups))


class Transaction(Gathered):
    """`with ctx.commit() as tx`: on PostgreSQL also a transaction for your own tables."""

    @property
    def connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The connection the commit is made on, for cursors, COPY or an ORM. Its transaction ends with the block."""
        self._check_open()
        connection: psycopg.Connection[tuple[Any, ...]] = self._block.connection
        return connection

    def execute(self, query: Query, params: Params | None = None) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute SQL as part of the commit; returns psycopg's cursor."""
        return self.connection.execute(query, params)


class AsyncTransaction(Gathered):
    """`async with ctx.commit() as tx`: on PostgreSQL also a transaction for your own tables."""

    def __init__(self, store: Store, lease: c.Lease, job: JobType[..., Any], block: Block) -> None:
        super().__init__(store, lease, job, block)
        self._calls: list[Coroutine[Any, Any, Any]] = []

    @property
    def connection(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """The connection the commit is made on, for cursors, COPY or an ORM. Its transaction ends with the block."""
        self._check_open()
        connection: psycopg.AsyncConnection[tuple[Any, ...]] = self._block.connection
        return connection

    def execute(
        self, query: Query, params: Params | None = None
    ) -> Coroutine[Any, Any, psycopg.AsyncCursor[tuple[Any, ...]]]:
        """`await tx.execute(...)`: execute SQL as part of the commit; returns psycopg's cursor."""
        call = self.connection.execute(query, params)
        self._calls.append(call)
        return call

    def _command(self) -> c.Commit:
        forgotten = [call for call in self._calls if inspect.getcoroutinestate(call) == inspect.CORO_CREATED]
        for call in forgotten:
            call.close()
        if forgotten:
            raise Invalid("a tx.execute was not awaited, so nothing is committed: write `await tx.execute(...)`")
        return super()._command()


class Boundary(Generic[SyncT, AsyncT]):
    """The block that `ctx.commit()` returns: enter it with `with` in a thread, with `async with` on the event loop."""

    __slots__ = ("_block", "_command", "_job", "_lease", "_run", "_store", "_work", "_work_types")

    def __init__(
        self,
        run: Handling,
        lease: c.Lease,
        job: JobType[..., Any],
        store: Store,
        block: Block,
        work_types: tuple[type[SyncT], type[AsyncT]],
    ) -> None:
        self._run = run
        self._lease = lease
        self._job = job
        self._store = store
        self._block = block
        self._work_types = work_types
        self._work: SyncT | AsyncT | None = None
        self._command: c.Commit | None = None

    # In sync handlers

    def __enter__(self) -> SyncT:
        if is_on_event_loop():
            raise Invalid("this handler runs on the event loop: write `async with ctx.commit() as tx`")
        self._check_first()
        try:
            self._check_held()
            self._refuse(self._persist(self._block.begin))
        except BaseException:
            self._block.roll_back()
            raise
        self._work = self._run.open_commit = work = self._work_types[0](
            self._store, self._lease, self._job, self._block
        )
        return work

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._close()
            self._block.roll_back()
            return
        try:
            command = self._sent()
            self._settle(self._commit(command))
        except BaseException as raised:
            self._forget_if_refused(raised)
            self._block.roll_back()
            raise

    def _commit(self, command: c.Commit) -> c.CommitOutcome | None:
        tracing = self._job.hooks.tracing
        if tracing is None:
            return self._persist(partial(self._send, command))
        with tracing.commit(self._lease) as call:
            outcome = self._persist(partial(self._send, command))
            call.answered(outcome)
        return outcome

    def _send(self, command: c.Commit) -> c.CommitOutcome | None:
        called_at = time.monotonic()
        outcome = self._block.commit(command)
        self._job.hooks.committed(time.monotonic() - called_at)
        return outcome

    def _persist(self, call: Callable[[], AnswerT]) -> AnswerT:
        """The store's answer; the call is repeated while the store is unavailable and the lease is held."""
        failures = 0
        while True:
            try:
                return call()
            except Unavailable:
                failures += 1
                if self._run.lost.wait(backoff_s(failures, self._store.entropy.jitter())):
                    raise self._given_up() from None

    # In async handlers

    async def __aenter__(self) -> AsyncT:
        self._check_first()
        try:
            self._check_held()
            self._refuse(await self._apersist(self._block.abegin))
        except BaseException:
            await self._block.aroll_back()
            raise
        self._work = self._run.open_commit = work = self._work_types[1](
            self._store, self._lease, self._job, self._block
        )
        return work

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._close()
            await self._block.aroll_back()
            return
        try:
            command = self._sent()
            self._settle(await self._acommit(command))
        except BaseException as raised:
            self._forget_if_refused(raised)
            await self._block.aroll_back()
            raise

    async def _acommit(self, command: c.Commit) -> c.CommitOutcome | None:
        tracing = self._job.hooks.tracing
        if tracing is None:
            return await self._apersist(partial(self._asend, command))
        with tracing.commit(self._lease) as call:
            outcome = await self._apersist(partial(self._asend, command))
            call.answered(outcome)
        return outcome

    async def _asend(self, command: c.Commit) -> c.CommitOutcome | None:
        called_at = time.monotonic()
        outcome = await self._block.acommit(command)
        self._job.hooks.committed(time.monotonic() - called_at)
        return outcome

    async def _apersist(self, call: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        failures = 0
        while True:
            try:
                return await call()
            except Unavailable:
                failures += 1
                if self._run.lost.is_set():
                    raise self._given_up() from None
                await asyncio.sleep(backoff_s(failures, self._store.entropy.jitter()))

    # In both

    def _check_first(self) -> None:
        if self._run.commit_sent is not None or self._work is not None:
            raise self._repeated()

    def _check_held(self) -> None:
        """X8: before the block, and again before the commit is sent. If the loss comes later, the store decides."""
        if self._run.lost.is_set():
            raise self._lost(self._run.lost.reason or NOT_EXTENDED, self._lease.attempt)

    def _repeated(self) -> Invalid:
        return Invalid(f"job {self._lease.job.id!r} has committed in this run already; one commit holds everything")

    def _refuse(self, outcome: c.CommitOutcome | None) -> None:
        """A block whose lease is lost, or whose job has committed, does not run."""
        if isinstance(outcome, c.Committed):
            raise self._repeated()
        if outcome is not None:
            self._settle(outcome)

    def _close(self) -> None:
        if self._work is not None:
            self._work._is_open = False
            self._run.open_commit = None

    def _sent(self) -> c.Commit:
        """The commit that is about to be sent."""
        assert self._work is not None
        self._close()
        if self._run.commit_sent is not None:
            raise self._repeated()
        self._check_held()
        self._command = self._run.commit_sent = self._work._command()
        return self._command

    def _settle(self, outcome: c.CommitOutcome | None) -> None:
        match outcome:
            case c.Committed(followup_ids=ids):
                if self._work is not None:
                    self._work.settle_ids(ids)
            case c.Conflict(job_id=job_id):
                raise JobConflict(job_id)
            case c.Lost(reason=reason, current_attempt=current_attempt):
                self._run.lost.set(reason)
                raise self._lost(reason, current_attempt)
            case None:
                raise Unavailable(
                    f"the connection was lost before job {self._lease.job.id!r} had committed: it will be retried"
                )
            case _:
                assert_never(outcome)

    def _forget_if_refused(self, error: BaseException) -> None:
        """X6: a refused commit did not happen, and the lease is unchanged: the handler may commit again. One that was
        interrupted (a timeout, a stop) may have happened, so another one could be taken for its repetition."""
        is_interrupted = not isinstance(error, Exception)
        if not is_interrupted and not self._run.lost.is_set() and self._run.commit_sent is self._command:
            self._run.commit_sent = None

    def _given_up(self) -> LeaseLost:
        """The store was unavailable until the lease was lost: that is not a failure of the handler."""
        return self._lost(self._run.lost.reason or NOT_EXTENDED, self._lease.attempt)

    def _lost(self, reason: str, current_attempt: int) -> LeaseLost:
        return LeaseLost(self._lease.job.id, "commit", reason, self._lease.attempt, current_attempt)
