"""What a worker does when an operator asks it to be quiet, to resume, or to stop."""

from __future__ import annotations

import asyncio

import pytest

from leasemill import App, JobState, JobType, Worker
from leasemill.kernel import commands as c
from leasemill.kernel.model import Order
from leasemill.store.worker_records import WorkerRecord, records
from leasemill.testing.rules import rule
from leasemill.worker import decisions, presence
from tests.worker.support import FaultyStore, until, working


@pytest.fixture(autouse=True)
def publishes_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "PRESENCE_S", 0.05)


def order(worker: Worker, what: Order) -> None:
    worker.app.store.order_worker(worker.id, what, by="ada", reason="a leak")


def record_of(worker: Worker) -> WorkerRecord | None:
    return next((one for one, _ in records(worker.app.store.presence) if one.worker == worker.id), None)


def is_quiet(worker: Worker) -> bool:
    record = record_of(worker)
    return record is not None and record.is_quiet


async def quietened(worker: Worker) -> None:
    await until(lambda: record_of(worker) is not None)
    order(worker, Order.QUIET)
    await until(lambda: is_quiet(worker))


@rule("O13")
async def test_a_quiet_worker_lets_run_what_runs_and_claims_nothing(app: App) -> None:
    gate = asyncio.Event()

    @app.job
    async def waits(number: int) -> int:
        await gate.wait()
        return number

    first, second = waits.enqueue(1), waits.enqueue(2)
    async with working(app, concurrency=1) as worker:
        await until(lambda: worker.metrics.running)
        await quietened(worker)
        gate.set()
        assert await first.aresult(30) == 1
        third = waits.enqueue(3)
        claims = worker.metrics.claims
        published = worker.metrics.claimed
        await until(lambda: (found := record_of(worker)) is not None and not found.running)
        assert (second.status(), third.status()) == (JobState.READY, JobState.READY)
        assert (worker.metrics.claims, worker.metrics.claimed) == (claims, published)
        assert second.record().attempt == 0

        order(worker, Order.RESUME)
        assert [await one.aresult(30) for one in (second, third)] == [2, 3]
        await until(lambda: not is_quiet(worker))
        record = record_of(worker)
        assert record is not None
        assert record.order is not None
        assert (record.order.order, record.order.by, record.order.reason) == (Order.RESUME, "ada", "a leak")


@rule("O13")
async def test_what_was_claimed_ahead_is_given_back(app: App) -> None:
    gate = asyncio.Event()

    @app.job
    async def waits() -> None:
        await gate.wait()

    async with working(app, concurrency=1) as worker:
        await until(lambda: record_of(worker) is not None)
        running = waits.enqueue()
        await until(lambda: worker.metrics.running)
        # Claims ahead need a pace; a claim that is answered late is the same to the runner.
        ahead = waits.enqueue()
        leases = app.store.claim(worker.id, [waits.queue], 1)
        assert [lease.job.id for lease in leases] == [ahead.id]
        order(worker, Order.QUIET)
        await until(lambda: is_quiet(worker))
        worker.runner.accept(leases, asyncio.get_running_loop().time())
        await until(lambda: ahead.status() is JobState.READY)
        assert ahead.record().retries == 0
        gate.set()
        await running.aresult(30)
        assert ahead.status() is JobState.READY


@rule("O13")
async def test_an_idle_worker_that_is_quiet_does_not_ask_for_jobs_and_stays_up(app: App, store: FaultyStore) -> None:
    @app.job
    async def quick() -> None: ...

    async with working(app) as worker:
        await quietened(worker)
        await until(lambda: decisions.next(worker.store_loop.look()) == decisions.NEVER)
        asked = len(store.commands(c.Claim)) + len(store.commands(c.DueIn))
        handle = quick.enqueue()
        await until(lambda: len(store.commands(c.GetOrder)) > 10)
        assert len(store.commands(c.Claim)) + len(store.commands(c.DueIn)) == asked
        assert handle.status() is JobState.READY
        order(worker, Order.RESUME)
        await handle.aresult(30)


@rule("O13")
async def test_a_worker_that_is_ordered_to_stop_shuts_down_as_after_a_signal(app: App) -> None:
    gate = asyncio.Event()

    @app.job
    async def waits(number: int) -> int:
        await gate.wait()
        return number

    first, second = waits.enqueue(1), waits.enqueue(2)
    worker = Worker(app, handle_signals=False, concurrency=1)
    task = asyncio.create_task(worker.run())
    await until(lambda: worker.metrics.running)
    await until(lambda: record_of(worker) is not None)
    order(worker, Order.STOP)
    await until(lambda: (found := record_of(worker)) is not None and found.is_stopping)
    assert not task.done()
    gate.set()
    await asyncio.wait_for(task, 30)
    assert first.result(0) == 1
    assert (second.status(), second.record().attempt) == (JobState.READY, 0)
    assert record_of(worker) is None


@rule("O13")
async def test_an_order_to_stop_does_not_hurry_a_worker_that_is_stopping(app: App) -> None:
    gate = asyncio.Event()

    @app.job
    async def waits() -> int:
        await gate.wait()
        return 1

    handle = waits.enqueue()
    worker = Worker(app, handle_signals=False)
    task = asyncio.create_task(worker.run())
    await until(lambda: worker.metrics.running)
    await until(lambda: record_of(worker) is not None)
    worker.stop()
    order(worker, Order.STOP)
    await until(lambda: (found := record_of(worker)) is not None and found.order is not None)
    await asyncio.sleep(0)
    assert not worker.shutdown.hurries
    gate.set()
    await asyncio.wait_for(task, 30)
    assert handle.result(0) == 1


@rule("O12")
async def test_a_worker_that_is_started_again_under_its_name_does_not_obey_the_order_to_the_one_before(
    app: App,
) -> None:
    @app.job
    async def quick() -> int:
        return 1

    async with working(app, worker_id="mill") as worker:
        await quietened(worker)
    async with working(app, worker_id="mill") as worker:
        assert await quick.enqueue().aresult(30) == 1
        assert not is_quiet(worker)


@rule("O13")
async def test_an_order_that_cannot_be_read_is_read_later(
    app: App, store: FaultyStore, noop: JobType[[], None]
) -> None:
    async with working(app) as worker:
        await until(lambda: record_of(worker) is not None)
        order(worker, Order.QUIET)
        store.fail(c.GetOrder, "before", "after", "before")
        await until(lambda: is_quiet(worker))
