"""A store that is away, or whose replies are lost: the worker goes on, loses nothing, and does not grow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasemill import App, JobState, JobType, Worker
from leasemill.errors import Invalid, QueueRefused
from leasemill.kernel import commands as c
from leasemill.testing.rules import rule
from tests.worker.support import FaultyStore, drained, until, working


@rule("C5")
@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_claim_whose_reply_was_lost_is_repeated_and_orphans_nothing(
    app: App, store: FaultyStore, fault: Any, noop: JobType[[], None]
) -> None:
    handles = noop.enqueue_many(noop.call() for _ in range(5))
    store.fail(c.Claim, fault)
    worker = await drained(app)
    first, second = store.commands(c.Claim)[:2]
    assert first == second
    assert [handle.record().attempt for handle in handles] == [1] * 5
    assert (worker.metrics.succeeded, worker.metrics.unavailable) == (5, 1)


async def test_a_claim_repeated_for_too_long_is_replaced_by_a_new_one(app: App, store: FaultyStore) -> None:
    @app.job(lease=0.05)
    async def noop() -> None: ...

    noop.enqueue()
    store.fail(c.Claim, "before", "before", "before")
    await drained(app)
    requests = [command.request_id for command in store.commands(c.Claim)]
    assert len(set(requests[:4])) > 1


@rule("L6")
@pytest.mark.parametrize("fault", ["before", "after"])
async def test_reports_are_repeated_until_they_are_answered(app: App, store: FaultyStore, fault: Any) -> None:
    @app.job(retry=0)
    async def ends(well: bool) -> int:
        if not well:
            raise ValueError("badly")
        return 1

    store.fail(c.Ack, fault, fault)
    store.fail(c.Nack, fault)
    good, bad = ends.enqueue(True), ends.enqueue(False)
    worker = await drained(app)
    assert (good.result(0), bad.status()) == (1, JobState.FAILED)
    assert good.record().refusals == bad.record().refusals == ()
    assert (worker.metrics.succeeded, worker.metrics.failed) == (1, 1)


async def test_a_worker_outlives_a_store_that_is_away_and_does_not_grow(app: App, store: FaultyStore) -> None:
    @app.job
    async def noop() -> None:
        store.is_away = True

    noop.enqueue_many(noop.call() for _ in range(100))
    async with working(app, concurrency=2, prefetch=3) as worker:
        await until(lambda: worker.metrics.unavailable >= 3)
        assert worker.metrics.claimed <= 5
        noop.function = noop_quietly
        store.is_away = False
        await until(lambda: worker.metrics.succeeded == 100, limit_s=20)
        assert worker.metrics.lost == 0


async def noop_quietly() -> None: ...


async def test_a_worker_waits_for_a_store_that_is_away_at_start_up(
    app: App, store: FaultyStore, noop: JobType[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    handle = noop.enqueue()
    store.is_away = True
    with caplog.at_level("INFO"):
        async with working(app) as worker:
            await until(lambda: worker.metrics.unavailable >= 3)
            store.is_away = False
            await handle.aresult(30)
    assert caplog.messages.count("the store is unavailable, will retry: the store is away") == 1
    assert caplog.messages.count("the store is available again") == 1


async def test_a_worker_that_cannot_reach_the_store_can_still_be_stopped(
    app: App, store: FaultyStore, noop: JobType[[], None]
) -> None:
    store.is_away = True
    async with working(app, shutdown_timeout=0.1) as worker:
        await until(lambda: worker.metrics.unavailable)


async def test_one_malformed_report_does_not_take_the_others_with_it(
    app: App,
    store: FaultyStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    noop: JobType[[], None],
) -> None:
    handles = noop.enqueue_many(noop.call() for _ in range(3))
    run = store.run

    def picky(command: c.Command[Any]) -> Any:
        if isinstance(command, c.Ack) and any(report.job_id == handles[1].id for report in command.reports):
            raise Invalid("this one is malformed")
        return run(command)

    monkeypatch.setattr(store, "run", picky)
    await drained(app)
    assert [handle.status() for handle in handles] == [JobState.SUCCEEDED, JobState.LEASED, JobState.SUCCEEDED]
    assert "a report was refused, the lease will expire: this one is malformed" in caplog.text


async def test_a_queue_that_is_not_claimed_this_way_stops_the_worker_with_a_sentence(
    app: App, store: FaultyStore
) -> None:
    @app.job(queue="offsets")
    async def noop() -> None: ...

    (token,) = store.entropy.tokens(1)
    store.acquire([c.AcquireRequest("offsets", "lane", 1, "w", token)])
    with pytest.raises(QueueRefused, match="queue 'offsets' is claimed by acquire only"):
        await asyncio.wait_for(Worker(app, handle_signals=False).run(), 60)
