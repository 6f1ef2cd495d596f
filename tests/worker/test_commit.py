"""The commit boundary, as a handler uses it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from leasemill import App, Context, JobState, Release
from leasemill.errors import Invalid, JobConflict, LeaseLost, LeasemillError, NoResult, QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.model import ExecutionStatus, Verb
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.worker.support import FaultyStore, drained, until, working

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def app(app: App) -> App:
    @app.job(queue="mail", lane="account")
    def receipt(account: str) -> str:
        return f"sent to {account}"

    return app


@rule("X6")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_commit_takes_result_and_follow_ups_along(app: App, store: FaultyStore, is_async: bool) -> None:
    receipt = app.jobs["receipt"]
    followups: list[str] = []

    @app.job(name="charge_async")
    async def charge_async(ctx: Context, account: str) -> int:
        async with ctx.commit() as tx:
            followups.append(tx.enqueue(receipt, account=account).id)
            followups.append(tx.enqueue(receipt.options(delay=60, priority=3), account="later").id)
            tx.set_result(500)
        assert ctx.is_committed
        return 500

    @app.job(name="charge_sync")
    def charge_sync(ctx: Context, account: str) -> int:
        with ctx.commit() as tx:
            followups.append(tx.enqueue(receipt, account=account).id)
            followups.append(tx.enqueue(receipt.options(delay=60, priority=3), account="later").id)
            tx.set_result(500)
        assert ctx.is_committed
        return 500

    handle = (charge_async if is_async else charge_sync).enqueue(account="a1")
    await drained(app)
    assert handle.result(0) == 500
    assert followups == [f"{handle.id}/0", f"{handle.id}/1"]
    first, second = (app.handle(job_id).record() for job_id in followups)
    assert (first.state, first.spec.queue, first.spec.lane) == (JobState.SUCCEEDED, "mail", "a1")
    assert (second.state, second.spec.priority, second.spec.delay_us) == (JobState.READY, 3, 60_000_000)
    assert len(store.commands(c.Commit)) == 1


@rule("X5")
@pytest.mark.parametrize("after", [ValueError("too late to fail"), Release()])
async def test_after_a_commit_the_job_succeeds_whatever_the_handler_does(app: App, after: Exception) -> None:
    @app.job
    async def charge(ctx: Context) -> None:
        async with ctx.commit():
            pass
        raise after

    handle = charge.enqueue()
    await drained(app)
    job = handle.record()
    assert (job.state, job.retries) == (JobState.SUCCEEDED, 0)
    if isinstance(after, ValueError):
        assert "too late to fail" in (job.executions[0].error or "")


async def test_a_block_that_raises_commits_nothing(app: App, store: FaultyStore) -> None:
    receipt = app.jobs["receipt"]

    @app.job(retry=0)
    async def charge(ctx: Context) -> None:
        async with ctx.commit() as tx:
            tx.enqueue(receipt, account="a1")
            raise ValueError("not after all")

    handle = charge.enqueue()
    await drained(app)
    assert handle.status() is JobState.FAILED
    assert store.commands(c.Commit) == []
    assert store.job(f"{handle.id}/0") is None


async def run_and_catch(app: App, body: Any) -> list[BaseException]:
    """What a body, given the context, raised inside a handler."""
    raised: list[BaseException] = []

    @app.job(name="catching", retry=0)
    async def catching(ctx: Context) -> None:
        try:
            await body(ctx)
        except LeasemillError as error:
            raised.append(error)

    catching.enqueue()
    await drained(app)
    return raised


async def test_a_handler_commits_once(app: App) -> None:
    async def twice(ctx: Context) -> None:
        async with ctx.commit():
            pass
        ctx.commit()

    (error,) = await run_and_catch(app, twice)
    assert isinstance(error, Invalid)
    assert "has committed in this run already" in str(error)


async def test_a_second_commit_opened_before_the_first_was_sent_is_refused_too(app: App) -> None:
    async def nested(ctx: Context) -> None:
        async with ctx.commit(), ctx.commit():
            pass

    (error,) = await run_and_catch(app, nested)
    assert isinstance(error, Invalid)
    assert "has committed in this run already" in str(error)


async def test_a_commit_that_was_interrupted_may_have_happened_so_the_run_has_no_other(
    app: App, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt, arun, is_on_record = app.jobs["receipt"], store.arun, asyncio.Event()

    async def slow_reply(command: c.Command[Any]) -> Any:
        answer = await arun(command)
        if isinstance(command, c.Commit):
            is_on_record.set()
            await asyncio.get_running_loop().create_future()
        return answer

    monkeypatch.setattr(store, "arun", slow_reply)

    async def again_after_a_timeout(ctx: Context) -> None:
        limit = asyncio.timeout(None)
        interrupting = asyncio.create_task(interrupt(limit))
        with suppress(TimeoutError):
            async with limit, ctx.commit() as tx:
                tx.enqueue(receipt, account="first")
        await interrupting
        assert ctx.is_committed
        async with ctx.commit() as tx:
            tx.enqueue(receipt, account="second")

    async def interrupt(limit: asyncio.Timeout) -> None:
        await is_on_record.wait()
        limit.reschedule(0)

    (error,) = await run_and_catch(app, again_after_a_timeout)
    assert isinstance(error, Invalid)
    assert "has committed in this run already" in str(error)
    assert [job.spec.lane for job in store.jobs(c.JobFilter(queue="mail")).jobs] == ["first"]


async def test_a_commit_is_used_inside_its_block_and_on_the_loop_with_async_with(app: App) -> None:
    receipt = app.jobs["receipt"]

    async def outside(ctx: Context) -> None:
        async with ctx.commit() as tx:
            pass
        tx.enqueue(receipt, account="a1")

    async def blocking(ctx: Context) -> None:
        with ctx.commit():
            pass

    async def with_id(ctx: Context) -> None:
        async with ctx.commit() as tx:
            tx.enqueue(receipt.options(job_id="mine"), account="a1")

    for body, sentence in (
        (outside, "this commit is not open"),
        (blocking, "write `async with ctx.commit\\(\\) as tx`"),
        (with_id, "a follow-up receipt cannot have its own job_id"),
    ):
        own = App(store=FaultyStore())
        (error,) = await run_and_catch(own, body)
        with pytest.raises(Invalid, match=sentence):
            raise error


async def test_a_wrong_follow_up_is_refused_in_the_block(app: App) -> None:
    async def wrong_call(ctx: Context) -> None:
        async with ctx.commit() as tx:
            tx.enqueue(app.jobs["receipt"], account=7)

    (error,) = await run_and_catch(app, wrong_call)
    with pytest.raises(Invalid, match="argument 'account': Expected `str`"):
        raise error


@rule("X6")
async def test_a_conflicting_follow_up_refuses_the_commit_and_another_may_be_tried(app: App) -> None:
    receipt = app.jobs["receipt"]
    raised: list[BaseException] = []

    @app.job
    async def charge(ctx: Context) -> None:
        try:
            async with ctx.commit() as tx:
                tx.enqueue(receipt, account="a1")
        except JobConflict as error:
            raised.append(error)
        async with ctx.commit():
            pass

    receipt.options(job_id="c-1/0").enqueue(account="other")
    handle = charge.options(job_id="c-1").enqueue()
    await drained(app)
    assert [str(error) for error in raised] == [
        "job 'c-1/0' exists with other content; use a new id, or enqueue the same content again"
    ]
    assert handle.status() is JobState.SUCCEEDED


async def test_a_follow_up_for_a_queue_used_otherwise_refuses_the_commit(app: App, store: FaultyStore) -> None:
    receipt = app.jobs["receipt"]
    (token,) = store.entropy.tokens(1)
    store.acquire([c.AcquireRequest("offsets", "lane", 1, "w", token)])

    @app.job(queue="offsets")
    def elsewhere() -> None: ...

    @app.job(retry=0)
    async def charge(ctx: Context) -> None:
        with pytest.raises(QueueRefused):
            async with ctx.commit() as tx:
                tx.enqueue(elsewhere)
        async with ctx.commit() as tx:
            tx.enqueue(receipt, account="a1")

    handle = charge.enqueue()
    await drained(app, queues=["default"])
    assert handle.status() is JobState.SUCCEEDED
    assert store.job(f"{handle.id}/0") is not None


@rule("L6")
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_commit_whose_reply_was_lost_is_repeated_as_it_was(
    app: App, store: FaultyStore, is_async: bool, fault: Any
) -> None:
    receipt = app.jobs["receipt"]

    @app.job(name="charge_async")
    async def charge_async(ctx: Context) -> None:
        async with ctx.commit() as tx:
            tx.enqueue(receipt, account="a1")

    @app.job(name="charge_sync")
    def charge_sync(ctx: Context) -> None:
        with ctx.commit() as tx:
            tx.enqueue(receipt, account="a1")

    store.fail(c.Commit, fault)
    handle = (charge_async if is_async else charge_sync).enqueue()
    await drained(app)
    first, second = store.commands(c.Commit)
    assert first == second
    assert handle.status() is JobState.SUCCEEDED
    assert app.handle(f"{handle.id}/0").result(0) == "sent to a1"


@rule("L2", "L5")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_commit_after_the_lease_was_lost_is_refused_and_nothing_is_reported(
    app: App, store: FaultyStore, clock: ManualClock, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[LeaseLost] = []

    @app.job(name="late_async")
    async def late_async(ctx: Context) -> None:
        clock.advance(s=31 if ctx.attempt == 1 else 0)
        try:
            async with ctx.commit():
                pass
        except LeaseLost as error:
            raised.append(error)
            assert ctx.lost.is_set()

    @app.job(name="late_sync")
    def late_sync(ctx: Context) -> None:
        clock.advance(s=31 if ctx.attempt == 1 else 0)
        try:
            with ctx.commit():
                pass
        except LeaseLost as error:
            raised.append(error)
            assert ctx.lost.is_set()

    handle = (late_async if is_async else late_sync).enqueue()
    async with working(app) as worker:
        await until(lambda: worker.metrics.succeeded)
    assert worker.metrics.lost == 1
    assert (raised[0].verb, raised[0].reason, raised[0].attempt) == ("commit", "expired", 1)
    job = handle.record()
    assert job.executions[0].status is ExecutionStatus.ABORTED
    assert [refusal.verb for refusal in job.refusals] == [Verb.COMMIT]
    assert "lease lost (expired): the handler's result is dropped" in caplog.text


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_commit_given_up_because_the_store_was_away_is_a_loss_and_no_failure(
    app: App, store: FaultyStore, clock: ManualClock, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(name="unheard_async", lease=0.1)
    async def unheard_async(ctx: Context) -> None:
        store.is_away = ctx.attempt == 1
        async with ctx.commit():
            pass

    @app.job(name="unheard_sync", lease=0.1)
    def unheard_sync(ctx: Context) -> None:
        store.is_away = ctx.attempt == 1
        with ctx.commit():
            pass

    handle = (unheard_async if is_async else unheard_sync).enqueue()

    def has_succeeded() -> bool:
        """While the first attempt's thread has not returned, the job is given back for a while."""
        if handle.record().state is JobState.READY:
            clock.advance(s=1)
        return worker.metrics.succeeded > 0

    async with working(app) as worker:
        await until(lambda: worker.metrics.lost)
        clock.advance(s=1)
        store.is_away = False
        await until(has_succeeded)
    assert store.commands(c.Nack) == []
    assert handle.record().attempt > 1
    assert handle.record().retries == 0
    assert "lease lost (it could not be extended in time)" in caplog.text


async def test_a_result_returned_after_a_commit_without_one_is_missed_loudly(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def charge(ctx: Context) -> int:
        async with ctx.commit():
            pass
        return 5

    handle = charge.enqueue()
    await drained(app)
    assert "returned a result after its commit, which is dropped: use tx.set_result" in caplog.text
    with pytest.raises(NoResult, match="succeeded without a result"):
        handle.result(0)


@rule("F9")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_that_set_its_result_in_the_commit_need_not_return_it(
    app: App, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    @app.job(name="charge_async")
    async def charge_async(ctx: Context) -> int:  # type: ignore[return]
        async with ctx.commit() as tx:
            tx.set_result(5)

    @app.job(name="charge_sync")
    def charge_sync(ctx: Context) -> int:  # type: ignore[return]
        with ctx.commit() as tx:
            tx.set_result(5)

    handle = (charge_async if is_async else charge_sync).enqueue()
    await drained(app)
    assert handle.result(0) == 5
    assert handle.record().executions[-1].error is None
    assert "InvalidResult" not in caplog.text


async def test_a_job_cancelled_while_it_commits_does_not_come_back(app: App, store: FaultyStore) -> None:
    """X5: the timeout hits while the commit's reply is out; the job has succeeded all the same."""

    @app.job(timeout=0.03, retry=0)
    async def charge(ctx: Context) -> None:
        async with ctx.commit():
            pass
        await asyncio.sleep(60)

    handle = charge.enqueue()
    worker = await drained(app)
    assert worker.metrics.timed_out == 1
    assert handle.status() is JobState.SUCCEEDED
