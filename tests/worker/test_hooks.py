"""Hooks around every run and at every enqueue, and the headers they carry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

import pytest

from leasemill import App, Context, JobState
from leasemill.api.hooks import Outgoing
from leasemill.errors import Invalid
from leasemill.testing.rules import rule
from tests.worker.support import FaultyStore, drained

pytestmark = pytest.mark.usefixtures("clock", "store")


@pytest.fixture
def seen(app: App) -> list[str]:
    lines: list[str] = []

    @app.around
    @contextmanager
    def outer(ctx: Context) -> Iterator[None]:
        lines.append(f"outer in {ctx.kind} {ctx.headers.get('tenant')}")
        try:
            yield
        except ValueError as error:
            lines.append(f"outer saw {error}")
            raise
        finally:
            lines.append("outer out")

    return lines


@pytest.mark.parametrize("is_async", [True, False])
async def test_hooks_are_entered_in_order_around_a_run(app: App, seen: list[str], is_async: bool) -> None:
    @app.around
    @contextmanager
    def inner(ctx: Context) -> Iterator[None]:
        seen.append("inner in")
        yield
        seen.append("inner out")

    @app.job(name="job")
    async def run_async(number: int) -> int:
        seen.append(f"run {number}")
        return number

    @app.job(name="sync")
    def run_sync(number: int) -> int:
        seen.append(f"run {number}")
        return number

    job = run_async if is_async else run_sync
    handle = job.options(headers={"tenant": "a"}).enqueue(7)
    await drained(app)
    assert handle.result(0) == 7
    assert seen == [f"outer in {job.kind} a", "inner in", "run 7", "inner out", "outer out"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_handler_raises_passes_through_the_hooks(app: App, seen: list[str], is_async: bool) -> None:
    @app.job(name="job", retry=0)
    async def run_async() -> None:
        raise ValueError("no")

    @app.job(name="sync", retry=0)
    def run_sync() -> None:
        raise ValueError("no")

    handle = (run_async if is_async else run_sync).enqueue()
    await drained(app)
    assert handle.status() is JobState.FAILED
    assert seen[1:] == ["outer saw no", "outer out"]


async def test_an_async_hook_goes_around_async_handlers_and_fails_sync_ones_with_a_sentence(app: App) -> None:
    entered: list[str] = []

    @app.around
    @asynccontextmanager
    async def hook(ctx: Context) -> AsyncIterator[None]:
        entered.append(ctx.kind)
        yield

    @app.job(retry=0)
    async def fits() -> None: ...

    @app.job(retry=0)
    def does_not() -> None: ...

    good, bad = fits.enqueue(), does_not.enqueue()
    await drained(app)
    assert good.status() is JobState.SUCCEEDED
    assert entered == ["fits"]
    error = bad.record().executions[-1].error
    assert error is not None
    assert "@contextmanager, or make does_not async" in error


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_hook_that_raises_or_returns_nothing_fails_the_run(app: App, is_async: bool) -> None:
    @app.around
    def hook(ctx: Context) -> Any:
        if ctx.kind == "raises":
            raise RuntimeError("no connection")
        return None

    ran: list[str] = []
    for name in ("raises", "forgets"):
        if is_async:

            async def run_async(name: str) -> None:
                ran.append(name)

            app.job(name=name, retry=0)(run_async)
        else:

            def run_sync(name: str) -> None:
                ran.append(name)

            app.job(name=name, retry=0)(run_sync)
    handles = [app.jobs[name].enqueue(name) for name in ("raises", "forgets")]
    await drained(app)
    errors = [handle.record().executions[-1].error or "" for handle in handles]
    assert ran == []
    assert "no connection" in errors[0]
    assert "context manager" in errors[1]


async def test_a_hook_that_swallows_an_error_makes_the_run_a_success_without_a_result(app: App) -> None:
    class Swallowing(AbstractContextManager[None]):
        def __exit__(self, *error: object) -> bool:
            return True

    @app.around
    def hook(ctx: Context) -> Swallowing:
        return Swallowing()

    @app.job(retry=0)
    def run() -> int | None:
        raise ValueError("swallowed")

    handle = run.enqueue()
    await drained(app)
    assert handle.result(0) is None


@rule("E4")
async def test_a_hook_at_enqueue_adds_headers_to_every_job_and_follow_up(app: App, store: FaultyStore) -> None:
    @app.on_enqueue
    def trace(job: Outgoing) -> None:
        job.headers["trace"] = f"{job.queue}/{job.kind}"

    @app.job(queue="mail")
    def receipt() -> None: ...

    @app.job
    def charge(ctx: Context) -> None:
        with ctx.commit() as tx:
            tx.enqueue(receipt)

    handle = charge.options(headers={"tenant": "a"}, job_id="c").enqueue()
    assert handle.record().spec.headers == {"tenant": "a", "trace": "default/charge"}
    await drained(app)
    assert app.handle("c/0").record().spec.headers == {"trace": "mail/receipt"}
    app.hooks.on_enqueue.clear()
    assert charge.options(job_id="c").enqueue().is_duplicate


def test_headers_that_cannot_be_kept_are_refused_where_they_are_written(app: App) -> None:
    @app.job
    def run() -> None: ...

    with pytest.raises(Invalid, match="header 'a b' is not a name"):
        run.options(headers={"a b": "x"})
