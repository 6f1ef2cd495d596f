"""Running jobs inside a test."""

from __future__ import annotations

import pytest

from leasemill import App, Context, Fail, JobState, Retry
from leasemill.errors import Invalid
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import adrain, drain, in_memory


def order_app() -> App:
    app = App("file:./must-not-be-opened")

    @app.job(lane="account")
    async def charge(ctx: Context, account: str, cents: int) -> int:
        async with ctx.commit() as tx:
            tx.enqueue(app.jobs["receipt"].options(delay=3600), account=account)
            tx.set_result(cents)
        return cents

    @app.job
    def receipt(account: str) -> str:
        if account == "nobody":
            raise Fail("no address")
        return f"mailed {account}"

    @app.job(retry=Retry(max=2))
    def flaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return ctx.attempt

    return app


def test_what_is_due_is_run_and_what_is_not_waits_for_the_clock() -> None:
    app = order_app()
    with in_memory(app) as clock:
        handle = app.jobs["charge"].enqueue(account="a1", cents=5)
        assert drain(app).succeeded == 1
        assert handle.result(0) == 5
        receipt = app.handle(f"{handle.id}/0")
        assert receipt.status() is JobState.READY
        clock.advance(s=3600)
        drain(app)
        assert receipt.result(0) == "mailed a1"


def test_with_the_clock_everything_is_run_until_nothing_waits() -> None:
    app = order_app()
    with in_memory(app, seed=1) as clock:
        began = clock.now()
        charged, flaky = app.jobs["charge"].enqueue(account="a1", cents=5), app.jobs["flaky"].enqueue()
        counted = drain(app, clock)
        assert (counted.succeeded, counted.retried) == (3, 2)
        assert flaky.result(0) == 3
        assert app.handle(f"{charged.id}/0").result(0) == "mailed a1"
        assert clock.now() - began >= 3600 * 1_000_000


async def test_async_tests_await_it() -> None:
    app = order_app()
    with in_memory(app) as clock:
        handle = await app.jobs["receipt"].aenqueue(account="nobody")
        with pytest.raises(Invalid, match="write `await adrain"):
            drain(app)
        assert (await adrain(app, clock)).failed == 1
        assert await handle.astatus() is JobState.FAILED


def test_the_apps_own_store_is_back_afterwards() -> None:
    app = App("memory:")
    own = app.store
    with in_memory(app) as clock:
        assert isinstance(clock, ManualClock)
        assert app.store is not own
    assert app.store is own
