"""Chains: jobs one after the other, the result of each handed to the next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from leasemill import PREVIOUS, App, ChainHandle, Context, Fail, JobState, Unique, chain
from leasemill.api.hooks import Outgoing
from leasemill.errors import Invalid, JobConflict, JobFailed, NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, Job
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import adrain, drain, in_memory
from leasemill.testing.rules import rule

app = App()
fails = threading.Event()


@app.job
async def fetch(url: str) -> list[int]:
    return [len(url), 2]


@app.job(queue="parsing", lane="url", priority=7, retry=0)
def parse(page: list[int], url: str = "u") -> int:
    if fails.is_set():
        raise Fail("no")
    return sum(page)


@app.job
async def store(url: str, number: int, *, note: str | None = None) -> str:
    return f"{url}: {number}"


@app.job
async def says_nothing() -> None: ...


@app.job
async def takes_anything(it: int | None) -> int:
    return it or 0


@app.job(lane="page")
async def laned_by(page: str) -> None: ...


@app.job(unique=True)
async def counts_once(page: list[int], name: str = "all") -> int:
    return len(page)


@app.job(unique=Unique(by="name"))
async def counts_by_name(page: list[int], name: str = "all") -> int:
    return len(page)


@app.job
async def begins(ctx: Context, url: str) -> None:
    async with ctx.commit() as tx:
        tx.enqueue_call(chain(fetch.call(url), takes_length.call(PREVIOUS)))


@app.job
async def takes_length(it: list[int]) -> int:
    return it[0]


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    fails.clear()
    with in_memory(app) as made:
        yield made


def job_of(job_id: str) -> Job:
    job = app.store.job(job_id)
    assert job is not None
    return job


@rule("B6")
def test_results_are_handed_on_and_the_last_is_the_chains(clock: ManualClock) -> None:
    handle = chain(fetch.call("abc"), parse.call(PREVIOUS), store.call("abc", number=PREVIOUS)).enqueue()
    assert len(app.store.jobs().jobs) == 1, "the others come with the success of the one before"
    drain(app, clock)
    assert handle.result() == "abc: 5"
    assert [one.result() for one in handle.jobs] == [[3, 2], 5, "abc: 5"]
    assert handle.status() is JobState.SUCCEEDED
    assert handle.id == handle.jobs[-1].id


def test_a_chain_needs_no_results(clock: ManualClock) -> None:
    handle = chain(says_nothing.call(), fetch.call("ab"), says_nothing.call()).enqueue()
    drain(app, clock)
    handle.result()
    assert handle.jobs[1].result() == [2, 2]


async def test_a_chain_in_async_code() -> None:
    handle = await chain(fetch.call("abc"), takes_length.call(PREVIOUS)).aenqueue()
    assert await handle.astatus() is JobState.READY
    await adrain(app)
    assert (await handle.astatus(), await handle.aresult()) == (JobState.SUCCEEDED, 3)


def test_every_call_keeps_its_options(clock: ManualClock) -> None:
    handle = chain(
        fetch.options(job_id="mine", priority=3).call("abc"),
        parse.options(delay=30, lane="by hand").call(PREVIOUS, url="v"),
    ).enqueue()
    assert [one.id for one in handle.jobs] == ["mine", "mine/then"]
    drain(app)
    spec, available_at = job_of("mine/then").spec, job_of("mine/then").available_at
    assert (spec.queue, spec.lane, spec.priority) == ("parsing", "by hand", 7)
    assert available_at == clock.now() + 30 * SECOND
    assert handle.status() is JobState.READY
    drain(app, clock)
    assert handle.result() == 5


def test_a_lane_comes_from_the_other_arguments(clock: ManualClock) -> None:
    chain(fetch.options(job_id="first").call("abc"), parse.call(PREVIOUS, url="v")).enqueue()
    drain(app)
    assert job_of("first/then").spec.lane == "v"


@rule("B6")
def test_a_failure_ends_the_chain_and_a_redrive_continues_it(clock: ManualClock) -> None:
    fails.set()
    handle = chain(fetch.call("abc"), parse.call(PREVIOUS), store.call("abc", PREVIOUS)).enqueue()
    drain(app, clock)
    assert handle.status() is JobState.FAILED
    with pytest.raises(JobFailed, match="Fail: no") as failed:
        handle.result()
    assert failed.value.job_id == handle.jobs[1].id
    with pytest.raises(NotFound, match="the last of a chain"):
        handle.record()
    fails.clear()
    app.store.redrive(c.JobFilter(job_ids=(handle.jobs[1].id,)), by="ann", reason="fixed")
    drain(app, clock)
    assert handle.result() == "abc: 5"
    assert handle.jobs[0].record().attempt == 1


def test_the_same_chain_again_is_a_duplicate_and_another_one_a_conflict() -> None:
    first = chain(fetch.options(job_id="one").call("abc"), parse.call(PREVIOUS)).enqueue()
    again = chain(fetch.options(job_id="one").call("abc"), parse.call(PREVIOUS)).enqueue()
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    with pytest.raises(JobConflict, match="job 'one' exists with other content"):
        chain(fetch.options(job_id="one").call("abc"), parse.call(PREVIOUS, url="w")).enqueue()


def test_the_result_can_be_read_when_the_first_jobs_are_forgotten(clock: ManualClock) -> None:
    handle = chain(fetch.call("abc"), parse.call(PREVIOUS)).enqueue()
    drain(app, clock)
    app.store.purge(c.JobFilter(job_ids=(handle.jobs[0].id,)), by="ann", reason="room")
    assert handle.result() == 5
    app.store.purge(c.JobFilter(job_ids=(handle.jobs[1].id,)), by="ann", reason="room")
    with pytest.raises(NotFound, match="nor one that follows it"):
        handle.result()


def test_a_waiter_is_woken_by_the_end_of_the_chain() -> None:
    handle = chain(fetch.call("abc"), parse.call(PREVIOUS), store.call("abc", PREVIOUS)).enqueue()
    results: list[str] = []
    waiter = threading.Thread(target=lambda: results.append(handle.result(timeout=60)))
    waiter.start()
    drain(app)
    waiter.join(60)
    assert results == ["abc: 5"]


def test_a_wait_that_takes_too_long_says_where_the_chain_is() -> None:
    handle = chain(fetch.call("abc"), parse.call(PREVIOUS)).enqueue()
    with pytest.raises(TimeoutError, match=f"job '{handle.jobs[0].id}' has not ended in time; it is ready"):
        handle.jobs[0].result(timeout=0)
    with pytest.raises(TimeoutError, match="it is ready"):
        handle.result(timeout=0.01)


def test_chains_are_enqueued_among_calls_in_chains_and_with_a_commit(clock: ManualClock) -> None:
    inner = chain(fetch.call("abc"), parse.call(PREVIOUS))
    long, single = app.enqueue_many([chain(inner, takes_anything.call(PREVIOUS)), takes_anything.call(1)])
    begun = begins.enqueue("abcd")
    drain(app, clock)
    assert (long.result(), single.result()) == (5, 1)
    assert job_of(f"{begun.id}/0/then").result == b"4"


def test_a_unique_job_begins_or_ends_a_chain(clock: ManualClock) -> None:
    first = chain(counts_once.call([1, 2]), takes_anything.call(PREVIOUS)).enqueue()
    again = chain(counts_once.call([1, 2]), takes_anything.call(PREVIOUS)).enqueue()
    assert (again.is_duplicate, again.id) == (True, first.id)
    last = chain(fetch.call("abc"), counts_by_name.call(PREVIOUS, name="mine")).enqueue()
    waiting = counts_by_name.options(delay=60).enqueue([1], name="held")
    merged = chain(fetch.call("abc"), counts_by_name.call(PREVIOUS, name="held")).enqueue()
    by_hand = chain(fetch.call("abc"), counts_once.options(unique="by hand").call(PREVIOUS)).enqueue()
    drain(app)
    assert (first.result(), again.result(), last.result(), by_hand.result()) == (2, 2, 2, 2)
    with pytest.raises(NotFound, match="or it was merged with another that held its unique key"):
        merged.record()
    drain(app, clock)
    assert waiting.result() == 1


def test_none_is_handed_on_where_it_fits(clock: ManualClock) -> None:
    handle = chain(says_nothing.call(), takes_anything.call(PREVIOUS)).enqueue()
    drain(app, clock)
    assert handle.result() == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (chain, "at least one call"),
        (lambda: chain(parse.call(PREVIOUS), fetch.call("u")).enqueue(), "there is no job before this one"),
        (lambda: app.enqueue_many([parse.call(PREVIOUS)]), "there is no job before this one"),
        (lambda: parse.enqueue(PREVIOUS), "there is no job before this one"),
        (lambda: chain(says_nothing.call(), parse.call(PREVIOUS)), "says_nothing returns nothing"),
        (lambda: store.call(PREVIOUS, PREVIOUS), r"PREVIOUS is passed for \(url, number\); use it for one"),
        (lambda: store.call(7, PREVIOUS), "'url': Expected `str`, got `int`"),  # type: ignore[arg-type]
        (lambda: store.call(PREVIOUS), "missing a required argument: 'number'"),  # type: ignore[call-arg]
        (lambda: store.call("u", PREVIOUS, note=3), "'note': Expected `str`"),  # type: ignore[arg-type]
        (lambda: parse.call([PREVIOUS]), "parse: .*_Previous"),
        (lambda: counts_once.call(PREVIOUS), "'page' is PREVIOUS, so a lane or a key cannot be computed"),
        (
            lambda: chain(fetch.call("u"), counts_by_name.call(PREVIOUS), takes_anything.call(PREVIOUS)),
            "counts_by_name is unique, and others follow it in this chain",
        ),
        (lambda: laned_by.call(PREVIOUS), "'page' is PREVIOUS, so a lane"),
        (lambda: chain(fetch.call("u"), parse.options(job_id="x").call([1])), "cannot have its own job_id"),
        (
            lambda: chain(fetch.call("u"), parse.options(run_at=datetime.now(UTC)).call([1])),
            "cannot have run_at: use delay",
        ),
    ],
)
def test_what_could_not_be_carried_out_is_refused(make: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        make()
    assert app.store.jobs().jobs == ()


def test_headers_of_a_hook_travel_along_the_chain_and_are_not_its_content(clock: ManualClock) -> None:
    traced = App()
    spans = iter(range(100))

    @traced.on_enqueue
    def trace(job: Outgoing) -> None:
        job.headers["trace"] = str(current)

    @traced.job
    async def step(ctx: Context) -> dict[str, str]:
        return dict(ctx.headers)

    with in_memory(traced):
        current = next(spans)
        handle = chain(step.options(job_id="one").call(), step.call(), step.call()).enqueue()
        current = next(spans)
        assert chain(step.options(job_id="one").call(), step.call(), step.call()).enqueue().is_duplicate
        drain(traced)
        assert [one.result() for one in handle.jobs] == [{"trace": "0"}] * 3


@pytest.mark.parametrize("is_async", [False, True])
def test_a_chain_whose_job_succeeds_meanwhile_is_cancelled_at_the_next(
    monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    app = App("memory:")

    @app.job
    def step(number: int) -> int:
        return number

    handle = chain(step.call(1), step.options(delay=60).call(2), step.call(3)).enqueue()
    drain(app)

    def before() -> tuple[int, None]:
        return 0, None

    async def abefore() -> tuple[int, None]:
        return 0, None

    monkeypatch.setattr(ChainHandle, "_latest", lambda _self: before())
    monkeypatch.setattr(ChainHandle, "_alatest", lambda _self: abefore())
    assert asyncio.run(handle.acancel("enough")) if is_async else handle.cancel("enough")
    assert [one.status() for one in handle.jobs[:2]] == [JobState.SUCCEEDED, JobState.CANCELLED]
    assert app.store.job(handle.jobs[2].id) is None
