"""A declared job is called as the function it is made of."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from typing import cast

import pytest
from starlette.background import BackgroundTask, BackgroundTasks

from leasemill import App, AsyncContextJob, AsyncJob, Context, SyncContextJob, SyncJob


@dataclass
class Recorded:
    """Stands in for a context: as much of it as the handler uses."""

    attempt: int = 1
    steps: list[tuple[float, float | None]] = field(default_factory=list)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        self.steps.append((done, total))


@pytest.fixture
def app() -> App:
    return App("memory:")


def test_calling_a_job_runs_its_function_and_touches_no_store() -> None:
    app = App("file:/nonexistent/folder")

    @app.job(queue="sums")
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert add(1) == 3
    assert add(1, b=5) == 6
    assert add.options(delay=60)(1) == 3
    assert isinstance(add, SyncJob)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        add()  # type: ignore[call-arg]


def test_calling_an_async_job_returns_its_coroutine(app: App) -> None:
    @app.job
    async def add(a: int, b: int) -> int:
        return a + b

    assert isinstance(add, AsyncJob)
    coroutine = add(1, 2)
    assert inspect.iscoroutine(coroutine)
    assert asyncio.run(coroutine) == 3


async def test_a_framework_that_runs_callables_notices_which_are_async(app: App) -> None:
    ran: list[str] = []

    @app.job
    async def on_the_loop(name: str) -> None:
        await asyncio.sleep(0)
        ran.append(name)

    @app.job
    def in_a_thread(name: str) -> None:
        ran.append(name)

    await BackgroundTasks([BackgroundTask(on_the_loop, "async"), BackgroundTask(in_a_thread, "sync")])()
    assert ran == ["async", "sync"]


def test_a_handler_with_a_context_is_called_with_one(app: App) -> None:
    @app.job
    def count(ctx: Context, rows: int) -> int:
        ctx.progress(rows, rows)
        return rows + ctx.attempt

    @app.job
    async def acount(ctx: Context, rows: int) -> int:
        return count(ctx, rows)

    context = Recorded(attempt=2)
    assert isinstance(count, SyncContextJob)
    assert isinstance(acount, AsyncContextJob)
    assert count(cast(Context, context), 3) == 5
    assert asyncio.run(acount(cast(Context, context), rows=4)) == 6
    assert context.steps == [(3, 3), (4, 4)]


def test_what_it_raises_passes_through(app: App) -> None:
    @app.job
    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        fails()


def test_a_job_keeps_what_is_known_of_its_function(app: App) -> None:
    def charge(ctx: Context, order: str, *, cents: int = 1) -> float:
        """Charge an order."""
        return cents / 100

    for job in (declared := app.job(name="shop.charge")(charge), declared.options(delay=5)):
        assert (job.__name__, job.__doc__) == ("charge", "Charge an order.")
        assert job.__qualname__ == charge.__qualname__
        assert job.__module__ == __name__
        assert job.__wrapped__ is charge
        assert inspect.signature(job) == inspect.signature(charge)
        assert inspect.unwrap(job) is charge
    assert repr(declared) == "<job 'shop.charge' in queue 'default'>"


def test_attributes_of_the_function_do_not_replace_those_of_the_job(app: App) -> None:
    def charge() -> None: ...

    charge.queue = "mine"  # type: ignore[attr-defined]
    assert app.job(charge).queue == "default"


def test_annotations_that_name_what_is_defined_later_do_not_matter_to_a_call(app: App) -> None:
    @app.job
    def later(order: Later) -> str:
        return order.text

    assert later(Later("x")) == "x"


@dataclass
class Later:
    text: str
