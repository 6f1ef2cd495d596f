"""Workers under limits: what they declare, what they claim ahead, and that no limit is ever exceeded."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from leasemill import App, Context, Limit, Rate, Throttled, Worker
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobState, LimitTerms, Verb
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import adrain
from leasemill.testing.rules import rule
from tests.worker.support import FaultyStore, drained, until, working


@rule("T6")
async def test_a_worker_declares_the_limits_of_its_code_when_it_starts(app: App, store: FaultyStore) -> None:
    @app.job(limit=Limit(3))
    async def crawl() -> None: ...

    store.fail(c.DeclareLimits, "before", "after")
    await drained(app)
    view = store.limit("crawl")
    assert view is not None
    assert view.terms == LimitTerms(3)
    await drained(app)
    assert [action.verb for action in store.actions()] == [Verb.DECLARE_LIMIT]


@rule("T6")
async def test_the_last_version_that_started_declares_the_numbers(store: FaultyStore) -> None:
    for places in (3, 5):
        app = App(store=store)

        @app.job(limit=Limit(places))
        async def crawl() -> None: ...

        await drained(app)
    view = store.limit("crawl")
    assert view is not None
    assert view.terms == LimitTerms(5)


@rule("T8")
async def test_jobs_under_a_limit_are_claimed_for_free_slots_alone(app: App, store: FaultyStore) -> None:
    """A pace that would have the worker claim ahead does not make it hold places it cannot use."""

    @app.job(limit=Limit(50))
    async def quick() -> None: ...

    @app.job
    async def plain() -> None: ...

    app.enqueue_many([*(quick.call() for _ in range(300)), *(plain.call() for _ in range(300))])
    await drained(app, concurrency=2)
    claims = store.commands(c.Claim)
    assert max(claim.limit for claim in claims) > 2, "the worker never claimed ahead: the test proves nothing"
    assert all(claim.slots is not None and claim.slots <= 2 for claim in claims)
    assert store.totals().counts[JobState.SUCCEEDED] == 600


@rule("T8")
async def test_nothing_is_claimed_ahead_from_a_queue_with_a_limit(app: App, store: FaultyStore) -> None:
    @app.job(queue="narrow")
    async def quick() -> None: ...

    store.set_limit("queue:narrow", LimitTerms(50), by="ada", reason="why")
    app.enqueue_many([quick.call() for _ in range(300)])
    await drained(app, concurrency=2)
    assert max(claim.limit for claim in store.commands(c.Claim)) <= 2
    assert store.totals().counts[JobState.SUCCEEDED] == 300


@rule("T13")
async def test_a_throttled_handler_pauses_its_limit_and_uses_no_retry(
    app: App, store: FaultyStore, clock: ManualClock
) -> None:
    calls: list[tuple[str, int, int]] = []

    @app.job(limit=[Rate(1_000, per=1, burst=100, name="api"), Limit(5, name="places")])
    async def call(ctx: Context, number: int) -> None:
        calls.append((ctx.job_id, clock.now(), ctx.retries))
        if len(calls) == 1:
            raise Throttled("api", 30, "429")

    first = call.options(job_id="first").enqueue(1)
    await drained(app, concurrency=1)
    started_at = clock.now()
    call.options(job_id="second").enqueue(2)
    await drained(app)
    assert len(calls) == 1
    job = store.job(first.id)
    assert job is not None
    assert job.state is JobState.READY
    assert job.executions[-1].error == "Throttled: 429"
    await adrain(app, clock)
    assert [(job_id, retries) for job_id, _, retries in calls] == [("first", 0), ("first", 0), ("second", 0)]
    assert calls[1][1] >= started_at + 30 * SECOND


@rule("T13")
async def test_two_handlers_that_are_throttled_at_once_hold_their_limit_until_the_later_time(
    app: App, store: FaultyStore, clock: ManualClock
) -> None:
    calls: list[tuple[int, int]] = []
    both = asyncio.Barrier(2)

    @app.job(limit=Rate(1_000, per=1, burst=100, name="api"))
    async def call(ctx: Context, seconds: int) -> None:
        calls.append((seconds, clock.now()))
        if ctx.attempt == 1:
            async with asyncio.timeout(30):
                await both.wait()
            raise Throttled("api", seconds, "429")

    handles = [call.enqueue(seconds) for seconds in (60, 10)]
    begun = clock.now()
    await adrain(app, clock)
    assert [handle.record().state for handle in handles] == [JobState.SUCCEEDED] * 2
    assert [handle.record().retries for handle in handles] == [0, 0]
    assert len(calls) == 4
    assert all(at >= begun + 60 * SECOND for _, at in calls[2:]), "the shorter pause does not cut the longer one"


@rule("T12")
async def test_drain_moves_the_clock_on_to_the_next_instant_of_a_rate(app: App, clock: ManualClock) -> None:
    starts: list[int] = []

    @app.job(limit=Rate(2, per=10, burst=2))
    async def call() -> None:
        starts.append(clock.now())

    for _ in range(6):
        call.enqueue()
    begun = clock.now()
    await adrain(app, clock)
    assert [(at - begun) // SECOND for at in starts] == [0, 0, 5, 10, 15, 20]


@rule("T12")
async def test_a_worker_sleeps_until_a_rate_has_room(app: App, store: FaultyStore) -> None:
    done = asyncio.Event()
    runs = 0

    @app.job(limit=Rate(20, per=1))
    async def call() -> None:
        nonlocal runs
        runs += 1
        if runs == 10:
            done.set()

    for _ in range(10):
        call.enqueue()
    async with working(app) as worker:
        await asyncio.wait_for(done.wait(), 30)
        claims = worker.metrics.claims
    assert claims < 60, f"{claims} claims for 10 jobs: the worker polled"


def overlaps(store: Store, kind: str) -> int:
    """The most executions of a kind that were under a lease at once, from the store's records."""
    edges: list[tuple[int, int]] = []
    page = store.jobs(limit=10_000)
    for job in page.jobs:
        if job.spec.kind == kind:
            for execution in job.executions:
                assert execution.finished_at is not None
                edges += [(execution.leased_at, 1), (execution.finished_at, -1)]
    most = now = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most


@rule("T1", "T2", "C7")
@pytest.mark.parametrize("places", [1, 5])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_eight_workers_never_exceed_a_limit(kind: str, places: int, tmp_path: Path) -> None:
    """Each with its own store object, in its own thread; checked from the records and in the handlers."""
    url = "memory:" if kind == "memory" else f"file:{tmp_path / 'jobs'}"
    shared = open_store(url)
    stores = [shared if kind == "memory" else open_store(url) for _ in range(8)]
    lock, running, most = threading.Lock(), 0, 0
    workers: list[Worker] = []

    def declare(store: Store) -> App:
        app = App(store=store)

        @app.job(limit=Limit(places))
        def call(number: int) -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.001)
            with lock:
                running -= 1

        return app

    apps = [declare(store) for store in stores]
    apps[0].enqueue_many([apps[0].jobs["call"].call(number) for number in range(120)])
    workers = [Worker(app, concurrency=3, handle_signals=False, reaper_interval=1) for app in apps]
    threads = [threading.Thread(target=worker.run_sync) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 60
        while shared.totals().counts[JobState.SUCCEEDED] < 120:
            assert time.monotonic() < deadline, "jobs are left although there are places"
            time.sleep(0.02)
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(30)
    assert most <= places
    assert overlaps(shared, "call") <= places
    view = shared.limit("call")
    assert view is not None
    assert (view.held, view.waiting) == (0, 0)
    for store in {id(store): store for store in [shared, *stores]}.values():
        store.close()


@rule("T3")
async def test_a_worker_that_dies_with_all_places_costs_one_lease(
    app: App, store: FaultyStore, clock: ManualClock
) -> None:
    ran: list[int] = []

    @app.job(limit=Limit(2), lease=60)
    async def call(number: int) -> None:
        ran.append(number)

    store.declare_limits({"call": LimitTerms(2)}, by="dead")
    for number in range(4):
        call.enqueue(number)
    assert len(store.claim("dead", ["default"], 10, kinds={"call": call.policy})) == 2
    async with working(app, reaper_interval=0.2) as worker:
        await until(lambda: worker.metrics.claims_empty and worker.metrics.reaper_runs)
        assert ran == []
        clock.advance(s=60)
        await until(lambda: len(ran) == 4, "the jobs of the dead worker and those that waited behind them")
    assert sorted(ran) == [0, 1, 2, 3]


@rule("T8")
async def test_a_worker_that_got_jobs_under_limits_asks_for_no_more_than_it_has_slots(
    app: App, store: FaultyStore
) -> None:
    @app.job(limit=Limit(50))
    async def limited(number: int) -> None: ...

    @app.job(queue="other")
    async def plain(number: int) -> None: ...

    limited.enqueue_many(limited.call(number) for number in range(400))
    await drained(app, concurrency=4)
    assert store.totals().counts[JobState.SUCCEEDED] == 400
    assert max(claim.limit for claim in store.commands(c.Claim)) <= 4
    store.sent.clear()
    plain.enqueue_many(plain.call(number) for number in range(400))
    await drained(app, concurrency=4)
    assert max(claim.limit for claim in store.commands(c.Claim)) > 4
