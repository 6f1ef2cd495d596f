"""The worker as its users see it: handlers run, and how they end is reported."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import leasemill
from leasemill import App, Context, Fail, JobState, JobType, Release, Retry, RetryAfter, Worker
from leasemill.errors import Invalid, JobFailed
from leasemill.kernel import commands as c
from leasemill.kernel.model import AbortReason, ExecutionStatus, JobSpec
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.worker.support import FaultyStore, drained, until, working

SOON = Retry(max=3, base=0, cap=0)


# Running --------------------------------------------------------------------------------------------------------


async def test_async_handlers_run_on_the_loop_and_sync_handlers_in_threads(app: App) -> None:
    threads: dict[str, threading.Thread] = {}

    @app.job
    async def on_loop(value: int) -> int:
        threads["on_loop"] = threading.current_thread()
        return value + 1

    @app.job
    def in_thread(value: int) -> int:
        threads["in_thread"] = threading.current_thread()
        return value + 2

    first, second = on_loop.enqueue(1), in_thread.enqueue(1)
    worker = await drained(app)
    assert (first.result(0), second.result(0)) == (2, 3)
    assert threads["on_loop"] is threading.current_thread()
    assert threads["in_thread"] is not threading.current_thread()
    assert threads["in_thread"].daemon
    assert (worker.metrics.claimed, worker.metrics.started, worker.metrics.succeeded) == (2, 2, 2)


async def test_a_handler_knows_its_job(app: App) -> None:
    seen: dict[str, Any] = {}

    @app.job(queue="billing", lane="account", timeout=300, retry=SOON)
    async def charge(ctx: Context, account: str) -> None:
        for name in ("job_id", "kind", "queue", "lane", "attempt", "retries", "idempotency_key", "worker"):
            seen.setdefault(name, []).append(getattr(ctx, name))
        seen.setdefault("fences", []).append(ctx.fence)
        seen["left"] = ctx.seconds_left
        seen["deadline"] = ctx.deadline
        seen["enqueued_at"] = ctx.enqueued_at
        assert not ctx.lost.is_set()
        if ctx.attempt == 1:
            raise ValueError("once")

    handle = charge.enqueue(account="a1")
    async with working(app, worker_id="me") as worker:
        await until(lambda: worker.metrics.succeeded)
    assert seen["job_id"] == seen["idempotency_key"] == [handle.id] * 2
    assert (seen["kind"][0], seen["queue"][0], seen["lane"][0], seen["worker"][0]) == ("charge", "billing", "a1", "me")
    assert (seen["attempt"], seen["retries"]) == ([1, 2], [0, 1])
    assert seen["fences"][0] < seen["fences"][1]
    assert 290 < seen["left"] <= 300
    assert abs(seen["deadline"] - (datetime.now(UTC) + timedelta(seconds=300))) < timedelta(seconds=10)
    assert abs(seen["enqueued_at"] - datetime.now(UTC)) < timedelta(seconds=10)


async def test_concurrency_is_a_bound_and_is_used(app: App) -> None:
    running, most = 0, 0

    @app.job
    async def counted() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    counted.enqueue_many(counted.call() for _ in range(20))
    worker = await drained(app, concurrency=4)
    assert most == 4
    assert worker.metrics.succeeded == 20


async def test_no_more_is_held_than_slots_when_handlers_are_slow(app: App, store: FaultyStore) -> None:
    gate = asyncio.Event()

    @app.job
    async def slow() -> None:
        await gate.wait()

    slow.enqueue_many(slow.call() for _ in range(50))
    async with working(app, concurrency=3) as worker:
        await until(lambda: worker.metrics.running == 3)
        await asyncio.sleep(0)
        assert store.totals().counts[JobState.LEASED] == 3
        gate.set()
        await until(lambda: worker.metrics.succeeded == 50)


async def test_jobs_held_ahead_are_given_back_when_handlers_become_slow(app: App, store: FaultyStore) -> None:
    gate = asyncio.Event()

    @app.job
    async def quick_then_slow(number: int) -> None:
        if number >= 200:
            await gate.wait()

    quick_then_slow.enqueue_many(quick_then_slow.call(number) for number in range(400))
    async with working(app, concurrency=2, prefetch=20) as worker:
        await until(lambda: worker.metrics.released, "jobs to be given back")
        assert store.totals().counts[JobState.LEASED] <= 22
        assert worker.metrics.lost == 0
        gate.set()
        await until(lambda: worker.metrics.succeeded == 400)


async def test_a_lane_runs_in_order_one_at_a_time(app: App) -> None:
    order: list[int] = []

    @app.job(lane="account")
    async def step(account: str, number: int) -> None:
        await asyncio.sleep(0)
        order.append(number)

    step.enqueue_many(step.call("a1", number) for number in range(30))
    await drained(app)
    assert order == list(range(30))


async def test_queues_are_served_by_weight(app: App) -> None:
    ran: list[str] = []

    @app.job(queue="often")
    async def often() -> None:
        ran.append("often")

    @app.job(queue="seldom")
    async def seldom() -> None:
        ran.append("seldom")

    app.enqueue_many(often.call() for _ in range(60))
    app.enqueue_many(seldom.call() for _ in range(60))
    await drained(app, queues={"often": 2, "seldom": 1}, concurrency=1, prefetch=0)
    assert 18 <= ran[:30].count("often") <= 22
    assert len(ran) == 120


async def test_a_worker_serves_the_queues_of_its_apps_jobs_by_default(app: App) -> None:
    @app.job(queue="b")
    def one() -> None: ...

    @app.job(queue="a")
    def two() -> None: ...

    assert Worker(app).queues == {"a": 1, "b": 1}
    assert Worker(app, ["x", "y"]).queues == {"x": 1, "y": 1}
    assert Worker(app, {"x": 3}).queues == {"x": 3}
    assert Worker(app).id != Worker(app).id


async def test_a_waiting_worker_is_woken_for_new_and_for_delayed_jobs(
    app: App, monkeypatch: pytest.MonkeyPatch, noop: JobType[[], None]
) -> None:
    """It would not look by itself within an hour."""
    monkeypatch.setattr("leasemill.worker.decisions.POLL_S", 3600.0)

    async with working(app):
        for delay in (0, 0.05):
            await (await noop.options(delay=delay).aenqueue()).aresult(30)


async def test_what_one_job_sets_in_its_context_does_not_show_in_another(app: App) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    @app.job
    async def on_loop() -> None:
        seen.append(variable.get())
        variable.set("set")

    @app.job
    def in_thread() -> None:
        seen.append(variable.get())
        variable.set("set")

    on_loop.enqueue_many(on_loop.call() for _ in range(10))
    in_thread.enqueue_many(in_thread.call() for _ in range(10))
    await drained(app, concurrency=1)
    assert seen == ["unset"] * 20


# How runs end ---------------------------------------------------------------------------------------------------


async def test_a_failed_job_is_retried_and_then_fails_with_its_error(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(retry=SOON)
    def broken(value: int) -> None:
        raise ValueError(f"no {value}")

    handle = broken.enqueue(7)
    async with working(app) as worker:
        await until(lambda: worker.metrics.failed)
    job = handle.record()
    assert (job.state, job.attempt, worker.metrics.retried) == (JobState.FAILED, 4, 3)
    error = job.executions[-1].error or ""
    assert error.startswith("ValueError: no 7\n")
    assert "in broken" in error
    assert str(Path(leasemill.__file__).parent) not in error
    with pytest.raises(JobFailed, match="failed: ValueError: no 7"):
        handle.result(0)
    assert [record.levelname for record in caplog.records if "job failed" in record.message] == ["WARNING"] * 3 + [
        "ERROR"
    ]


@pytest.mark.parametrize("is_async", [True, False])
async def test_handlers_choose_their_outcome(app: App, is_async: bool) -> None:
    outcomes: dict[str, BaseException] = {
        "fail": Fail("no such account"),
        "later": RetryAfter(60, "rate limited"),
        "release": Release(timedelta(minutes=1)),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "cancel": asyncio.CancelledError(),
    }

    async def ends(how: str) -> None:
        raise outcomes[how]

    def ends_in_thread(how: str) -> None:
        raise outcomes[how]

    function = ends if is_async else ends_in_thread
    once, twice = app.job(retry=0, name="once")(function), app.job(retry=1, name="twice")(function)
    handles = {how: (twice if how in ("fail", "later") else once).enqueue(how) for how in outcomes}
    await drained(app)
    jobs = {how: handle.record() for how, handle in handles.items()}
    states = {how: job.state for how, job in jobs.items()}
    assert states == {
        "fail": JobState.FAILED,
        "later": JobState.READY,
        "release": JobState.READY,
        "exit": JobState.FAILED,
        "interrupt": JobState.FAILED,
        "cancel": JobState.FAILED,
    }
    assert jobs["fail"].executions[0].error == "Fail: no such account"
    assert (jobs["fail"].attempt, jobs["fail"].retries) == (1, 0), "the retry that was left is not used"
    assert jobs["later"].executions[0].error == "RetryAfter: rate limited"
    assert jobs["later"].retries == 1
    assert jobs["later"].available_at - jobs["later"].updated_at == 60_000_000
    assert (jobs["release"].retries, jobs["release"].executions[0].reason) == (0, AbortReason.RELEASED)
    assert jobs["release"].available_at > jobs["release"].updated_at
    assert (jobs["exit"].executions[0].error or "").startswith("SystemExit: 3")


def test_outcomes_with_impossible_delays_are_refused() -> None:
    with pytest.raises(Invalid, match=r"RetryAfter\(delay\) is -1 s"):
        RetryAfter(-1)
    with pytest.raises(Invalid, match=r"Release\(delay\) is -1 s"):
        Release(-1)
    assert Release().delay_us == 1_000_000


async def test_a_long_error_is_cut_and_an_odd_one_is_made_fit(app: App) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text either")

    @app.job(retry=0)
    async def fails(how: str) -> None:
        raise {
            "long": ValueError("é" * 50_000),
            "surrogate": ValueError("\udcff"),
            "zero": ValueError("a\0b"),
            "odd": Odd(),
        }[how]

    handles = {how: fails.enqueue(how) for how in ("long", "surrogate", "zero", "odd")}
    await drained(app)
    errors = {how: handle.record().executions[0].error or "" for how, handle in handles.items()}
    assert len(errors["long"].encode()) <= 8 * 1024
    assert " ...\n" in errors["long"]
    assert errors["long"].count("é") > 2_000
    assert "in fails" in errors["long"]
    assert errors["surrogate"].startswith("ValueError: \\udcff")
    assert errors["zero"].startswith("ValueError: a\\0b")
    assert "Odd" in errors["odd"]


class WordlessFailure(Fail):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class WordlessError(Exception):
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


class UnfinishedRelease(Release):
    def __init__(self) -> None:  # without the base's: it has no delay
        pass


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WordlessFailure("x"), "WordlessFailure: <its __str__ raised RuntimeError>"),
        (WordlessError(), "WordlessError"),
        (UnfinishedRelease(), "UnfinishedRelease"),
    ],
)
async def test_an_exception_that_cannot_be_formatted_is_reported_and_its_slot_is_free_again(
    app: App, is_async: bool, error: Exception, text: str
) -> None:
    @app.job(name="raises_async", retry=0)
    async def raises_async() -> None:
        raise error

    @app.job(name="raises_sync", retry=0)
    def raises_sync() -> None:
        raise error

    handle = (raises_async if is_async else raises_sync).enqueue()
    worker = await asyncio.wait_for(drained(app, concurrency=1), 20)
    assert worker.metrics.failed == 1
    assert text in (handle.record().executions[0].error or "")


@rule("F9")
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("text", "returned a value that does not match its annotation: Expected `int`, got `str`"),
        (
            object(),
            "returned a value that does not match its annotation: Encoding objects of type object is unsupported",
        ),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_the_job_and_runs_it_no_more(
    app: App, is_async: bool, value: Any, why: str
) -> None:
    ran: list[int] = []

    def lies(number: int) -> int:
        ran.append(number)
        return value  # type: ignore[no-any-return]

    async def lies_async(number: int) -> int:
        return lies(number)

    handle = app.job(name="lies", retry=SOON)(lies_async if is_async else lies).enqueue(1)
    worker = await drained(app)
    job = handle.record()
    assert (ran, job.state, job.attempt, worker.metrics.failed) == ([1], JobState.FAILED, 1, 1)
    assert (job.executions[0].error or "").startswith("InvalidResult: lies")
    assert why in (job.executions[0].error or "")
    assert "the handler ran and its effects stand" in (job.executions[0].error or "")


@rule("F9")
async def test_a_result_that_is_too_large_fails_the_job_and_runs_it_no_more(app: App) -> None:
    @app.job(retry=SOON)
    def large() -> str:
        return "x" * 1_100_000

    @app.job(retry=SOON)
    def deep() -> Any:
        value: list[Any] = []
        for _ in range(100_000):
            value = [value]
        return value

    handles = [large.enqueue(), deep.enqueue()]
    await drained(app)
    assert [(one.status(), one.record().attempt) for one in handles] == [(JobState.FAILED, 1)] * 2
    assert "InvalidResult: large returned 1,100,002 bytes" in (handles[0].record().executions[0].error or "")


@rule("F9", "X5")
async def test_a_wrong_result_in_a_commit_block_is_raised_before_the_commit(app: App) -> None:
    raised: list[str] = []

    @app.job(retry=SOON)
    def commits(ctx: Context) -> str:
        with ctx.commit() as tx:
            try:
                tx.set_result(7)
            except Invalid as error:
                raised.append(str(error))
                tx.set_result("seven")
        return 7  # type: ignore[return-value]

    handle = commits.enqueue()
    await drained(app)
    assert raised == [
        "commits called tx.set_result with a value that does not match its annotation: Expected `str`, got `int`"
    ]
    assert handle.result(0) == "seven"


async def test_a_handler_whose_annotation_cannot_be_resolved_runs_none_of_its_jobs_and_stops_no_others(
    app: App, store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    namespace: dict[str, Any] = {}
    exec("def bad(money: 'Money') -> None: ...", namespace)
    app.job(retry=0)(namespace["bad"])

    @app.job
    def good() -> int:
        return 1

    store.enqueue([JobSpec("bad", "default", "bad", b'{"money":"1"}')])
    handle = good.enqueue()
    await drained(app)
    assert handle.result(0) == 1
    job = app.handle("bad").record()
    assert (job.state, job.attempt) == (JobState.READY, 1)
    assert "parameter 'money' of bad cannot be resolved: name 'Money' is not defined" in (job.executions[0].error or "")
    assert "jobs of kind 'bad' cannot run here" in caplog.text


@dataclass
class Picky:
    number: int

    def __post_init__(self) -> None:
        if self.number == 13:
            raise LookupError("not this one")


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_argument_whose_own_code_raises_fails_its_job_alone(
    app: App, store: FaultyStore, is_async: bool
) -> None:
    def takes(picky: Picky) -> int:
        return picky.number

    async def takes_async(picky: Picky) -> int:
        return picky.number

    job = app.job(name="takes", retry=SOON)(takes_async if is_async else takes)
    store.enqueue([JobSpec("bad", "default", "takes", b'{"picky":{"number":13}}')])
    handle = job.enqueue(Picky(1))
    async with working(app) as worker:
        await until(lambda: worker.metrics.failed == 1, limit_s=30)
    assert handle.result(0) == 1
    bad = app.handle("bad").record()
    assert (bad.state, bad.attempt) == (JobState.FAILED, 4)
    assert (bad.executions[0].error or "").startswith("LookupError: not this one")


async def test_a_plain_function_that_returns_a_coroutine_fails_with_a_hint(app: App) -> None:
    async def inner() -> int:
        return 1

    @app.job(retry=0)
    def outer() -> Any:
        return inner()

    handle = outer.enqueue()
    await drained(app)
    assert "declare it with `async def`" in (handle.record().executions[0].error or "")


# Timeouts and starts --------------------------------------------------------------------------------------------


async def test_an_async_handler_is_cancelled_at_its_timeout_and_may_clean_up(app: App) -> None:
    cleaned: list[str] = []

    @app.job(timeout=0.02, retry=0)
    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    handle = endless.enqueue()
    worker = await drained(app)
    assert cleaned == ["up"]
    assert worker.metrics.timed_out == 1
    with pytest.raises(
        JobFailed, match=r"ran longer than its timeout of 0.02 s; allow more with @app.job\(timeout=...\)"
    ):
        handle.result(0)


async def test_a_thread_that_outruns_its_timeout_is_reported_and_keeps_its_slot(app: App) -> None:
    may_end = threading.Event()
    saw_loss: list[bool] = []

    @app.job(timeout=0.02, retry=0)
    def endless(ctx: Context) -> None:
        saw_loss.append(ctx.lost.wait(60))
        may_end.wait(60)

    @app.job
    async def other() -> None: ...

    handle, behind = endless.enqueue(), other.enqueue()
    async with working(app, concurrency=1) as worker:
        await until(lambda: handle.status() is JobState.FAILED)
        await until(lambda: saw_loss == [True])
        assert (worker.metrics.running, behind.status()) == (1, JobState.READY)
        may_end.set()
        await behind.aresult(30)


async def test_a_long_run_is_seen_to_have_started_while_it_runs(app: App) -> None:
    gate = asyncio.Event()

    @app.job
    async def long() -> None:
        await gate.wait()

    handle = long.enqueue()
    async with working(app) as worker:
        await until(lambda: handle.record().executions and handle.record().executions[0].started_at)
        execution = handle.record().executions[0]
        assert execution.status is ExecutionStatus.STARTED
        gate.set()
        await until(lambda: worker.metrics.succeeded)


async def test_of_a_quick_run_only_the_end_is_reported(app: App, store: FaultyStore) -> None:
    @app.job
    async def quick() -> None: ...

    handle = quick.enqueue()
    await drained(app)
    assert store.commands(c.Start) == []
    execution = handle.record().executions[0]
    assert execution.started_at == execution.finished_at


@rule("F4")
async def test_after_an_expiration_the_start_is_on_record_before_the_handler_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    store = FaultyStore(clock)
    app = App(store=store)
    seen: list[ExecutionStatus] = []

    @app.job
    async def suspect(ctx: Context) -> None:
        seen.append(store.job(ctx.job_id).executions[-1].status)  # type: ignore[union-attr]

    suspect.enqueue()
    store.claim("killed", ["default"], 1)
    clock.advance(s=32)
    store.fail(c.Start, "before", "after")
    worker = await drained(app)
    assert seen == [ExecutionStatus.STARTED]
    assert worker.metrics.succeeded == 1
    assert (worker.metrics.taken_over, worker.metrics.taken_over_seconds) == (1, 2.0)
    assert "job runs again 2.0 s after the lease of worker killed expired" in caplog.text


# Logs and counters ----------------------------------------------------------------------------------------------


async def test_lines_of_a_handler_carry_its_ids(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job
    async def talks(ctx: Context) -> None:
        ctx.logger.info("half way", extra={"done": 3})

    handle = talks.enqueue()
    with caplog.at_level(logging.INFO, "leasemill"):
        worker = await drained(app)
    (record,) = [record for record in caplog.records if record.message == "half way"]
    assert vars(record) | {"job": handle.id, "attempt": 1, "worker": worker.id, "kind": "talks", "done": 3} == vars(
        record
    )


async def test_a_worker_runs_once(app: App, noop: JobType[[], None]) -> None:
    worker = await drained(app)
    with pytest.raises(Invalid, match="this worker has run already"):
        await worker.run()


def test_run_sync_runs_in_a_loop_of_its_own(app: App, noop: JobType[[], None]) -> None:
    handle = noop.enqueue()
    Worker(app, drain=True).run_sync()
    assert handle.status() is JobState.SUCCEEDED


async def test_many_quick_jobs_are_claimed_and_reported_in_batches(app: App, noop: JobType[[], None]) -> None:
    noop.enqueue_many(noop.call() for _ in range(2_000))
    worker = await drained(app)
    assert worker.metrics.succeeded == 2_000
    assert worker.metrics.claims < 200
    assert worker.metrics.flushes < 400
