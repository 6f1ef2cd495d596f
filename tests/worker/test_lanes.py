"""Workers and lanes: as a lane's job ends the next is claimed with its ack (C8), in order, and nobody is starved."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from leasemill import App, Worker
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobState, LimitTerms
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.testing.rules import rule
from tests.worker.support import FaultyStore, drained, until, working


class HandingStore(FaultyStore):
    """Notes what is sent together; `stops`: a worker that is stopped as it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.together = 0
        self.stops: Worker | None = None

    async def ack_and_claim(self, ack: c.Ack, claim: c.Claim) -> tuple[list[c.AckOutcome], list[c.Lease] | None]:
        self.together += 1
        if self.stops is not None:
            runner = self.stops.runner
            self.stops.stop()
            await until(lambda: runner._takes_no_more, "the worker to stop")
            self.stops = None
        return await super().ack_and_claim(ack, claim)


class LosingStore(HandingStore):
    """Loses the reply to the first claim that goes along with acks."""

    async def ack_and_claim(self, ack: c.Ack, claim: c.Claim) -> tuple[list[c.AckOutcome], list[c.Lease] | None]:
        outcomes, leases = await super().ack_and_claim(ack, claim)
        return outcomes, None if self.together == 1 else leases


@pytest.fixture
def store() -> HandingStore:
    return HandingStore()


def declared(app: App) -> list[str]:
    """A job in a lane; returns what ran."""
    ran: list[str] = []

    @app.job(lane="lane")
    async def step(lane: str, number: int) -> None:
        ran.append(f"{lane}{number}")

    return ran


def enqueue(app: App, lanes: str, count: int) -> None:
    step = app.jobs["step"]
    step.enqueue_many(step.call(lane, number) for number in range(count) for lane in lanes)


@rule("C8", "N2")
async def test_the_jobs_of_a_lane_are_claimed_with_the_acks_of_those_before(app: App, store: HandingStore) -> None:
    ran = declared(app)
    enqueue(app, "a", 50)
    worker = await drained(app)
    assert ran == [f"a{number}" for number in range(50)]
    assert worker.metrics.succeeded == worker.metrics.claimed == 50
    assert store.together == 50
    assert len(store.commands(c.Ack)) == 50
    assert len(store.commands(c.Claim)) < 60  # one with each ack, and a few at the beginning and the end


@rule("C8")
async def test_while_there_are_other_lanes_to_claim_acks_are_sent_alone(app: App, store: HandingStore) -> None:
    """Claims are made beside them, in batches: taken along, the two would wait for each other."""
    declared(app)
    step = app.jobs["step"]
    step.enqueue_many(step.call(f"lane {number}", 0) for number in range(200))
    await drained(app, concurrency=2, prefetch=0)
    assert store.together <= 2  # when the last have been claimed


@rule("C8", "N1", "N2")
@pytest.mark.parametrize("concurrency", [1, 3, 20])
async def test_lanes_keep_their_order_and_take_turns(app: App, store: HandingStore, concurrency: int) -> None:
    ran = declared(app)
    enqueue(app, "abcdefgh", 12)
    await drained(app, concurrency=concurrency)
    for lane in "abcdefgh":
        assert [one for one in ran if one[0] == lane] == [f"{lane}{number}" for number in range(12)]
    assert store.totals().counts[JobState.SUCCEEDED] == 8 * 12


@rule("C8", "C2")
async def test_a_job_that_comes_first_runs_before_the_rest_of_a_busy_lane(app: App, store: HandingStore) -> None:
    ran: list[str] = []

    @app.job
    async def urgent() -> None:
        ran.append("urgent")

    @app.job(lane="lane")
    async def step(lane: str, number: int) -> None:
        ran.append(f"{lane}{number}")
        if number == 5:
            await urgent.options(priority=9).aenqueue()

    enqueue(app, "a", 30)
    await drained(app, concurrency=1)
    assert ran.index("urgent") == 6
    assert [one for one in ran if one != "urgent"] == [f"a{number}" for number in range(30)]


@rule("C8", "O3")
async def test_a_queue_that_is_paused_hands_nothing_over_until_it_is_resumed(app: App, store: HandingStore) -> None:
    ran: list[int] = []

    @app.job(lane="lane")
    async def step(lane: str, number: int) -> None:
        ran.append(number)
        if number == 2:
            store.pause("default", by="ada", reason="because")

    enqueue(app, "a", 5)
    async with working(app) as worker:
        await until(lambda: worker.metrics.succeeded == 3)
        assert ran == [0, 1, 2]
        store.resume("default", by="ada", reason="because")
        await until(lambda: worker.metrics.succeeded == 5)
    assert ran == [0, 1, 2, 3, 4]


@rule("C8", "C5", "L6")
async def test_a_lost_reply_orphans_no_job(app: App, store: HandingStore) -> None:
    ran = declared(app)
    enqueue(app, "ab", 10)
    store.fail(c.Ack, "after", "before", "after", "after")
    store.fail(c.Claim, "before", "after")
    worker = await drained(app)
    assert sorted(ran) == sorted(f"{lane}{number}" for lane in "ab" for number in range(10))
    assert [one for one in ran if one[0] == "a"] == [f"a{number}" for number in range(10)]
    assert worker.metrics.lost == 0
    jobs = store.jobs(c.JobFilter()).jobs
    assert {len(job.executions) for job in jobs} == {1}


@rule("C8", "C5")
async def test_a_claim_that_came_to_no_end_is_made_again(app: App, store: HandingStore) -> None:
    """The ack stands: only the claim is missing."""
    ran = declared(app)
    enqueue(app, "a", 10)
    store.fail(c.Claim, "before", "before", "before")
    await drained(app)
    assert ran == [f"a{number}" for number in range(10)]
    assert len(store.commands(c.Ack)) == 10


@rule("C8")
async def test_jobs_that_are_handed_over_to_a_worker_that_stops_are_given_back(app: App, store: HandingStore) -> None:
    ran = declared(app)
    enqueue(app, "a", 10)
    worker = Worker(app, handle_signals=False)
    store.stops = worker
    await asyncio.wait_for(worker.run(), 60)
    assert ran == ["a0"]
    counts = store.totals().counts
    assert (counts[JobState.SUCCEEDED], counts[JobState.READY]) == (1, 9)
    assert counts.get(JobState.LEASED, 0) == 0


@rule("C8", "F8")
async def test_a_next_job_of_an_unknown_kind_is_given_back(app: App, store: HandingStore) -> None:
    ran = declared(app)
    enqueue(app, "a", 1)
    other = App(store=store)

    @other.job(name="unknown", lane="lane")
    async def unknown(lane: str, number: int) -> None: ...

    await unknown.aenqueue("a", 1)
    async with working(app) as worker:
        await until(lambda: worker.metrics.released == 1)
    assert ran == ["a0"]
    assert store.totals().counts[JobState.READY] == 1


@rule("C8", "T2")
async def test_a_lane_under_a_limit_goes_on(app: App, store: HandingStore) -> None:
    ran = declared(app)
    enqueue(app, "abc", 5)
    store.set_limit("queue:default", LimitTerms(places=1), by="ada", reason="because")
    await drained(app)
    for lane in "abc":
        assert [one for one in ran if one[0] == lane] == [f"{lane}{number}" for number in range(5)]


@rule("C8", "N2")
async def test_two_workers_share_lanes_in_order(tmp_path: Path) -> None:
    store: Store = open_store(f"file:{tmp_path}/jobs")
    app = App(store=store)
    ran = declared(app)
    enqueue(app, "abcd", 40)
    workers = [Worker(app, handle_signals=False, drain=True, worker_id=name, concurrency=2) for name in ("w1", "w2")]
    await asyncio.wait_for(asyncio.gather(*(worker.run() for worker in workers)), 60)
    for lane in "abcd":
        assert [one for one in ran if one[0] == lane] == [f"{lane}{number}" for number in range(40)]
    store.close()


@rule("C5", "C8")
async def test_a_claim_along_with_acks_whose_reply_was_lost_is_repeated_as_it_was() -> None:
    """It may have been granted jobs: nobody else could run them before their leases end."""
    store = LosingStore()
    app = App(store=store)
    ran = declared(app)
    enqueue(app, "a", 3)
    await drained(app)
    assert ran == ["a0", "a1", "a2"]
    requests = [command.request_id for command in store.commands(c.Claim)]
    assert len(requests) > len(set(requests))
    assert store.totals().counts[JobState.LEASED] == 0
