"""Jobs in Django's tests: `JobsMixin` for TestCase and TransactionTestCase, and what the fixture `leasemill_django` is.

    class OrderTests(JobsMixin, TestCase):
        def test_an_order_is_shipped(self) -> None:
            order = place_order("book")
            self.jobs.run()
            order.refresh_from_db()

A test's transaction never commits, so no worker would see what is enqueued in it. `run()` takes the jobs that are in
the tables now, as this transaction sees them (what was rolled back is not), into a store in memory and runs them there,
one at a time, on the test's own connections, until nothing waits: retries and delays are moved on to by a clock.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, TypeVar, cast

import msgspec
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from leasemill.api.app import App
from leasemill.api.context import Context
from leasemill.api.policy import is_on_event_loop
from leasemill.contrib.django.application import app
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.base import Block
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import add_metrics, drain
from leasemill.worker.metrics import Metrics

AnswerT = TypeVar("AnswerT")
ROUNDS_MOST = 1_000


class JobsMixin:
    """Before TestCase or TransactionTestCase: `self.jobs` has the jobs of each test."""

    _jobs: TestJobs | None = None

    @property
    def jobs(self) -> TestJobs:
        """The jobs of this test."""
        if self._jobs is None:
            raise Invalid(
                "self.jobs is set by JobsMixin.setUp: put JobsMixin before TestCase, and call super().setUp(); "
                "in a class or function of pytest's own style use the fixture `leasemill_django` instead"
            )
        return self._jobs

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]  # of the TestCase
        self._jobs = self.enterContext(jobs_of_test())  # type: ignore[attr-defined]  # of the TestCase


class TestJobs:
    """The jobs of one test."""

    __test__ = False  # pytest: a class of ours, with this name for users

    def __init__(self, of: App, store: TestStore, clock: ManualClock) -> None:
        self._app = of
        self._store = store
        self.clock = clock
        """The time of the jobs: it moves by `run()`, or by `advance`."""

    def run(self) -> Metrics:
        """Run jobs until none waits."""
        if is_on_event_loop():
            raise Invalid("run() was called in async code: write `await jobs.arun()`")
        total = Metrics()
        for _ in range(ROUNDS_MOST):
            self._store.take()
            with _shared_connections(self._app):
                counted = drain(self._app, self.clock, concurrency=1)
            add_metrics(total, counted)
            if not self._store.has_untaken():
                return total
        raise Invalid(f"after {ROUNDS_MOST:,} rounds jobs still wait: do they enqueue each other without end?")

    async def arun(self) -> Metrics:
        """`run` in async code."""
        return await sync_to_async(self.run)()

    def enqueued(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The arguments of the jobs that wait, oldest first; of one kind, or of all."""
        self._store.take()
        waiting = self._store.jobs(c.JobFilter(kind=kind), limit=1_000).jobs
        return [msgspec.json.decode(job.spec.payload) for job in waiting if job.state == "ready"]


@contextmanager
def jobs_of_test() -> Iterator[TestJobs]:
    """Inside the block the app's jobs are those of a test."""
    clock = ManualClock(time.time_ns() // 1_000)
    store = TestStore(clock)
    store.discard_committed()
    with app.bound_to(store):
        try:
            yield TestJobs(app, store, clock)
        finally:
            store.close()


class TestStore(MemoryStore):
    """A store in memory; what is enqueued in a transaction of the store's database goes to its tables first."""

    __test__ = False

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._tables = _Tables.of_settings()

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        tables = self._tables
        if tables is not None and isinstance(command, c.Enqueue) and tables.is_in_transaction():
            return cast(AnswerT, tables.run(command))
        answer = super().run(command)
        if answer is None and tables is not None and isinstance(command, c.GetJob) and tables.is_in_transaction():
            return cast(AnswerT, tables.run(command))
        return answer

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        if isinstance(command, c.Enqueue | c.GetJob):
            return cast(AnswerT, await sync_to_async(self.run)(cast(c.Command[Any], command)))
        return await super().arun(command)

    def block(self, lease: c.Lease, seconds_left: float) -> Block:
        return Block(self) if self._tables is None else _AtomicBlock(self, self._tables.alias)

    def joined_block(self, lease: c.Lease, session: object) -> Block:
        return _AtomicBlock(self, session) if isinstance(session, str) else super().joined_block(lease, session)

    def take(self) -> None:
        """Move what is in the tables here."""
        if self._tables is not None and (specs := self._tables.take()):
            super().run(c.Enqueue(specs))

    def discard_committed(self) -> None:
        """Remove the jobs that tests with real transactions have committed: Django empties only the tables of
        models."""
        if self._tables is not None and not self._tables.is_in_transaction():
            self._tables.take()

    def close(self) -> None:
        super().close()
        if self._tables is not None:
            self._tables.close()

    def has_untaken(self) -> bool:
        return self._tables is not None and self._tables.count() > 0


class _Tables:
    """The tables of the project's store, as the test's transaction sees them."""

    def __init__(self, alias: str, url: str) -> None:
        from leasemill.contrib.django.store import DjangoStore, in_transaction

        self.alias = alias
        self._store = DjangoStore(url, alias)
        self._in_transaction = in_transaction

    @classmethod
    def of_settings(cls) -> _Tables | None:
        from leasemill.contrib.django.configuration import configuration

        chosen = configuration()
        return None if chosen.database is None else cls(chosen.database, chosen.store_url)

    def is_in_transaction(self) -> bool:
        return self._in_transaction(self.alias)

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        return self._store.run(command)

    def count(self) -> int:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(f'select count(*) from "{self._store.options.schema}".jobs')
            return int(cursor.fetchone()[0])

    def take(self) -> list[JobSpec]:
        return self._store.take_all()

    def close(self) -> None:
        self._store.close()


class _AtomicBlock(Block):
    """A commit's block around what the ORM writes, with the commit itself in memory."""

    def __init__(self, store: TestStore, alias: str) -> None:
        super().__init__(store)
        self._alias = alias
        self._atomic: transaction.Atomic | None = None

    @property
    def connection(self) -> Any:
        return connections[self._alias].connection

    def begin(self) -> c.CommitOutcome | None:
        self._atomic = transaction.atomic(using=self._alias, durable=True)
        self._atomic.__enter__()
        return None

    def commit(self, command: c.Commit) -> c.CommitOutcome | None:
        if connections[self._alias].needs_rollback:
            raise TransactionManagementError("Django would not commit the transaction of ctx.commit()")
        outcome = super().commit(command)
        if isinstance(outcome, c.Committed) and self._atomic is not None:
            atomic, self._atomic = self._atomic, None
            atomic.__exit__(None, None, None)
        else:
            self.roll_back()
        return outcome

    def roll_back(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            error = TransactionManagementError("the commit of the job was not made")
            atomic.__exit__(type(error), error, None)


# Threads ---------------------------------------------------------------------------------------------------------


@contextmanager
def _shared_connections(of: App) -> Iterator[None]:
    """Handlers run in other threads: there they use the test's own connections, as a live server's thread does."""
    shared: dict[str, Any] = {one.alias: one for one in connections.all(initialized_only=True)}

    def share(_context: Context) -> AbstractContextManager[None] | AbstractAsyncContextManager[None]:
        return _lent_to_loop(shared) if is_on_event_loop() else _lent(shared)

    for one in shared.values():
        one.inc_thread_sharing()
    of.hooks.around.insert(0, share)
    try:
        yield
    finally:
        of.hooks.around.remove(share)
        for one in shared.values():
            one.dec_thread_sharing()


@contextmanager
def _lent(shared: dict[str, Any]) -> Iterator[None]:
    _lend(shared)
    try:
        yield
    finally:
        _take_back(shared)


@asynccontextmanager
async def _lent_to_loop(shared: dict[str, Any]) -> AsyncIterator[None]:
    await sync_to_async(_lend)(shared)
    try:
        yield
    finally:
        await sync_to_async(_take_back)(shared)


def _lend(shared: dict[str, Any]) -> None:
    for alias, one in shared.items():
        connections[alias] = one


def _take_back(shared: dict[str, Any]) -> None:
    for alias in shared:
        del connections[alias]
