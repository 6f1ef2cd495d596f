"""What programs do with jobs and handles while a worker runs; run on every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leasemill import (
    PREVIOUS,
    App,
    Call,
    Context,
    Invalid,
    JobFailed,
    JobHandle,
    JobProgress,
    JobState,
    NotFound,
    Retry,
    StreamCount,
    chain,
)
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import SECOND, Policy
from leasemill.store.base import Store
from tests.worker.support import drained, working

LIMIT_S = 60


async def reported(handle: JobHandle[Any]) -> JobProgress:
    """The progress of a job, as soon as there is some."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            if (found := await handle.aprogress()) is not None:
                return found
            await asyncio.sleep(0.01)


class WorkSuite:
    """A store's tests give the `store`."""

    @pytest.fixture
    def app(self, store: Store) -> App:
        return App(store=store, retry=Retry(base=0, cap=0))

    # By name

    async def test_a_program_without_the_handlers_code_enqueues_by_name(self, app: App, store: Store) -> None:
        @app.job(queue="billing")
        async def charge(account: str, cents: int = 1) -> int:
            return cents

        producer = App(store=store)
        by_name = await producer.aenqueue("charge", queue="billing", account="ann", cents=7)
        again = producer.named("charge", queue="billing").options(job_id="mine", priority=3)
        await again.aenqueue(account="bob")
        wrong = await producer.aenqueue("charge", queue="billing", euros=7)
        async with working(app, mismatch_timeout=0):
            assert await by_name.aresult(LIMIT_S) == 7
            assert await producer.handle("mine").aresult(LIMIT_S) == 1
            assert await wrong.await_end(LIMIT_S) is JobState.FAILED
        assert (await producer.handle("mine").arecord()).spec.priority == 3

    async def test_the_same_call_by_name_and_by_its_declaration_is_the_same_job(self, app: App, store: Store) -> None:
        @app.job
        async def charge(account: str, cents: int) -> int:
            return cents

        producer = App(store=store).named("charge", queue="default").options(job_id="one")
        assert not (await producer.aenqueue(cents=1, account="ann")).is_duplicate
        assert (await charge.options(job_id="one").aenqueue("ann", 1)).is_duplicate

    async def test_a_named_job_is_part_of_a_chain(self, app: App, store: Store) -> None:
        @app.job
        async def double(number: int) -> int:
            return 2 * number

        one = App(store=store).named("double", queue="default")
        chained = await chain(one.call(number=2), one.call(number=PREVIOUS), double.call(PREVIOUS)).aenqueue()
        async with working(app):
            assert await chained.aresult(LIMIT_S) == 16

    # A job's own policy and queue

    async def test_a_jobs_own_policy_holds_before_the_queues_and_the_kinds(self, app: App, store: Store) -> None:
        @app.job(retry=2, lease=20, timeout=50)
        async def fails(ctx: Context) -> None:
            raise ValueError(f"attempt {ctx.attempt}")

        own = await fails.options(retry=Retry(max=1, base=0, cap=0), lease=10).options(timeout=7).aenqueue()
        kinds = await fails.aenqueue()
        queues = await fails.options(queue="other").aenqueue()
        await asyncio.to_thread(
            store.set_policy, "other", Policy(max_retries=0, lease_ttl_us=15 * SECOND), by="ann", reason="test"
        )
        async with working(app, queues=["default", "other"]):
            assert [await one.await_end(LIMIT_S) for one in (own, kinds, queues)] == 3 * [JobState.FAILED]
        terms = [(await one.arecord()).executions[-1].terms for one in (own, kinds, queues)]
        attempts = [(await one.arecord()).attempt for one in (own, kinds, queues)]
        assert attempts == [2, 3, 1]
        assert [one.lease_ttl_us // SECOND for one in terms] == [10, 20, 15]
        assert [one.timeout_us // SECOND for one in terms] == [7, 50, 50]

    async def test_a_job_with_a_shorter_lease_than_its_kind_is_kept_alive(self, app: App) -> None:
        @app.job(lease=60)
        async def slow() -> int:
            await asyncio.sleep(0.8)
            return 1

        handle = await slow.options(lease=0.3, timeout=30).aenqueue()
        async with working(app):
            assert await handle.aresult(LIMIT_S) == 1
        assert (await handle.arecord()).attempt == 1

    async def test_follow_ups_and_members_carry_their_own_policy(self, app: App) -> None:
        @app.job
        async def leaf() -> None: ...

        @app.job
        async def root(ctx: Context) -> None:
            async with ctx.commit() as tx:
                tx.enqueue(leaf.options(timeout=9))

        first = await chain(root.call(), leaf.options(retry=7, queue="later").call()).aenqueue()
        async with working(app, queues=["default", "later"]):
            assert await first.await_end(LIMIT_S) is JobState.SUCCEEDED
            specs = [job.spec for job in (await asyncio.to_thread(app.store.jobs)).jobs if job.spec.kind == "leaf"]
        assert {(spec.queue, spec.policy) for spec in specs} == {
            ("default", Policy(timeout_us=9 * SECOND)),
            ("later", Policy(max_retries=7)),
        }

    # Which errors are retried

    async def test_errors_are_retried_by_their_type(self, app: App) -> None:
        @app.job(retry=Retry(max=2, on=(OSError, ValueError), never_on=ConnectionError))
        async def fails(ctx: Context, error: str) -> None:
            raise {"os": OSError, "value": UnicodeError, "key": KeyError, "lost": ConnectionResetError}[error]("x")

        @app.job(retry=Retry(max=2, never_on=(KeyError,)))
        def threaded(error: str) -> None:
            raise {"key": KeyError, "value": ValueError}[error]("x")

        handles = await app.aenqueue_many(
            [
                *(fails.call(error) for error in ("os", "value", "key", "lost")),
                *(threaded.call(error) for error in ("key", "value")),
            ]
        )
        await drained(app)
        assert [(await one.arecord()).attempt for one in handles] == [3, 3, 1, 1, 1, 3]
        assert {await one.astatus() for one in handles} == {JobState.FAILED}

    async def test_a_timeout_is_a_timeout_error(self, app: App) -> None:
        @app.job(timeout=0.05, retry=Retry(max=1, never_on=TimeoutError))
        async def never() -> None:
            await asyncio.sleep(3600)

        @app.job(timeout=0.05, retry=Retry(max=1, on=TimeoutError))
        async def again() -> None:
            await asyncio.sleep(3600)

        handles = await app.aenqueue_many([never.call(), again.call()])
        await drained(app)
        assert [(await one.arecord()).attempt for one in handles] == [1, 2]

    async def test_a_handler_that_a_shutdown_stops_is_given_back_whatever_it_is_retried_on(self, app: App) -> None:
        began = asyncio.Event()

        @app.job(retry=Retry(on=ValueError))
        async def long() -> None:
            began.set()
            await asyncio.sleep(3600)

        handle = await long.aenqueue()
        async with working(app, shutdown_timeout=0.5):
            await asyncio.wait_for(began.wait(), LIMIT_S)
        assert await handle.astatus() is JobState.READY

    # Handles

    async def test_a_job_is_cancelled_by_its_handle_waiting_or_running(self, app: App) -> None:
        began = asyncio.Event()

        @app.job
        async def long() -> None:
            began.set()
            await asyncio.sleep(3600)

        @app.job
        async def short() -> int:
            return 1

        waits = await long.options(delay=3600).aenqueue()
        assert await waits.acancel("not needed")
        assert await waits.acancel("not needed"), "it is cancelled"
        handle, done = await long.aenqueue(), await short.aenqueue()
        async with working(app):
            await asyncio.wait_for(began.wait(), LIMIT_S)
            assert await done.await_end(LIMIT_S) is JobState.SUCCEEDED
            assert await asyncio.to_thread(handle.cancel, reason="enough", by="ann")
            assert await handle.await_end(LIMIT_S) is JobState.CANCELLED
            assert await asyncio.to_thread(handle.wait, LIMIT_S) is JobState.CANCELLED
            assert not await done.acancel("too late")
        cancellation = (await handle.arecord()).cancellation
        assert cancellation is not None
        assert (cancellation.by, cancellation.reason) == ("ann", "enough")
        with pytest.raises(NotFound, match="there is no job 'nobody'"):
            await app.handle("nobody").acancel("never was")

    async def test_progress_is_that_of_the_latest_run(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("leasemill.worker.presence.PRESENCE_S", 0.05)
        goes_on = threading.Event()

        @app.job
        def counts(ctx: Context) -> None:
            if ctx.attempt == 1:
                raise ValueError("at first")
            ctx.progress(3, 10, "rows")
            goes_on.wait(LIMIT_S)

        handle = await counts.aenqueue()
        assert await handle.aprogress() is None
        async with working(app, worker_id="mill") as worker:
            found = await reported(handle)
            same = await asyncio.to_thread(handle.progress)
            goes_on.set()
            await handle.await_end(LIMIT_S)
            assert await handle.aprogress() is None, "it has ended, whatever its worker published last"
        assert (found.done, found.total, found.note, found.attempt, found.worker) == (3.0, 10.0, "rows", 2, worker.id)
        assert isinstance(same, JobProgress)
        assert same.done == 3.0

    async def test_a_chain_is_waited_for_cancelled_and_looked_at_as_one(
        self, app: App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("leasemill.worker.presence.PRESENCE_S", 0.05)

        @app.job
        async def first() -> int:
            return 1

        @app.job
        async def second(ctx: Context, number: int) -> int:
            ctx.progress(number)
            await asyncio.sleep(3600)
            return number

        running = await chain(first.call(), second.call(PREVIOUS), first.call()).aenqueue()
        done = await chain(first.call(), first.call()).aenqueue()
        async with working(app):
            assert (await reported(running)).done == 1.0
            assert await running.acancel("enough")
            assert await running.await_end(LIMIT_S) is JobState.CANCELLED
            assert await asyncio.to_thread(running.wait, LIMIT_S) is JobState.CANCELLED
            assert await done.await_end(LIMIT_S) is JobState.SUCCEEDED
            assert not await done.acancel("too late")
        assert await asyncio.to_thread(app.store.job, running.jobs[2].id) is None

    async def test_waiting_for_the_end_raises_only_when_the_time_is_over(self, app: App) -> None:
        @app.job(retry=0)
        async def fails() -> None:
            raise ValueError("x")

        handle = await fails.aenqueue()
        with pytest.raises(TimeoutError, match="it is ready"):
            await handle.await_end(0.01)
        with pytest.raises(TimeoutError, match="it is ready"):
            await asyncio.to_thread(handle.wait, 0.01)
        async with working(app):
            assert await handle.await_end(LIMIT_S) is JobState.FAILED
        with pytest.raises(JobFailed):
            await handle.aresult()

    # Streams

    async def test_a_stream_is_enqueued_as_it_comes(self, app: App) -> None:
        @app.job
        async def load(row: int) -> int:
            return row

        async def rows() -> AsyncIterator[Call[int]]:
            for row in range(1_500):
                yield load.options(job_id=f"row-{row}").call(row)

        assert await app.aenqueue_stream(rows()) == StreamCount(jobs=1_500)
        again = (load.options(job_id=f"row-{row}").call(row) for row in range(1_490, 1_510))
        assert await asyncio.to_thread(load.enqueue_stream, again) == StreamCount(jobs=10, duplicates=10)

    async def test_a_stream_fills_a_group(self, app: App) -> None:
        @app.job
        async def load(row: int) -> int:
            return row

        async def rows() -> AsyncIterator[Call[int]]:
            for row in range(20):
                yield load.call(row)

        async with app.group("rows") as group:
            assert (await group.aenqueue_stream(rows())).total == 20
            assert (await group.aenqueue_stream(load.call(row) for row in range(5))).total == 5
            assert (await asyncio.to_thread(group.enqueue_stream, [load.call(1)])).total == 1
        assert (await group.astatus()).total == 26
        page = await asyncio.to_thread(app.store.jobs, JobFilter(group="rows"))
        assert len(page.jobs) == 26

    async def test_a_kind_that_is_not_declared_needs_its_queue(self, store: Store) -> None:
        producer = App(store=store)
        with pytest.raises(Invalid, match=r"does not declare 'charge' \(declared: none\).*queue=\.\.\."):
            await producer.aenqueue("charge", account="ann")

    # Schedules in async code

    async def test_schedules_are_set_and_operated_in_async_code(self, app: App) -> None:
        @app.job
        async def report(customer: int) -> int:
            return customer

        schedules = app.schedules
        made = await schedules.aset("r-1", "0 6 * * *", report.call(1), tz="Europe/Berlin", missed="all", by="ann")
        assert (made.name, made.tz, made.missed, made.overlap) == ("r-1", "Europe/Berlin", "all", "queue")
        assert (await schedules.aset("r-1", "0 6 * * *", report.call(1), tz="Europe/Berlin", missed="all")) == made
        await schedules.aset("r-2", timedelta(hours=1), report.call(2))
        assert await schedules.aget("r-1") == made
        assert await schedules.aget("r-3") is None
        assert [one.name for one in await schedules.alist()] == ["r-1", "r-2"]
        assert (await schedules.apause("r-2", reason="holiday")).is_paused
        assert not (await schedules.aresume("r-2")).is_paused
        fired = await schedules.afire("r-2")
        start = datetime(2026, 1, 1, tzinfo=UTC)
        filled = await schedules.abackfill("r-2", start, start + timedelta(hours=2))
        assert [one.id for one in filled] == [f"cron/r-2/2026-01-01T0{hour}:00:00Z" for hour in range(3)]
        async with working(app):
            assert [await one.aresult(LIMIT_S) for one in (fired, *filled)] == 4 * [2]
        await schedules.aremove("r-2", by="ann", reason="gone")
        with pytest.raises(NotFound, match="there is no schedule 'r-2'"):
            await schedules.aremove("r-2")
        with pytest.raises(NotFound, match="there is no schedule 'r-2'"):
            await schedules.aresume("r-2")
        actions = await asyncio.to_thread(app.store.actions)
        assert {("ann", "set by the application"), ("ann", "gone"), ("application", "holiday")} <= {
            (one.by, one.reason) for one in actions
        }
