"""The lifespan of an app: entered before a worker's first claim, left after its last report; what it yields."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leasemill import App, Context, JobState, Observer, Worker
from leasemill.cli import main
from leasemill.errors import Broken, Invalid, LifespanFailed
from leasemill.kernel import commands as c
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import adrain
from tests.worker.support import FaultyStore, drained, until, working


@dataclass
class State:
    """What a lifespan sets up."""

    name: str = "pool"
    is_open: bool = True
    used_by: list[str] = field(default_factory=list)


@pytest.fixture
def seen() -> list[str]:
    return []


def declare(app: App, seen: list[str], *, is_async: bool = True) -> None:
    """A lifespan that notes what it does."""
    if is_async:

        @app.lifespan
        @asynccontextmanager
        async def resources() -> AsyncIterator[State]:
            seen.append("enter")
            state = State()
            yield state
            state.is_open = False
            seen.append("leave")
    else:

        @app.lifespan
        @contextmanager
        def sync_resources() -> Iterator[State]:
            seen.append("enter")
            state = State()
            yield state
            state.is_open = False
            seen.append("leave")


class Notes(Observer):
    """Notes claims and settled runs between the lifespan's own lines."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def claimed(self, leases: Any, took_s: float) -> None:
        if leases:
            self.seen.append("claim")

    def settled(self, batch: Any, took_s: float) -> None:
        self.seen.append("settled")


@pytest.mark.parametrize("is_async", [True, False])
async def test_it_is_entered_before_the_first_claim_and_left_after_the_last_report(
    app: App, seen: list[str], clock: ManualClock, is_async: bool
) -> None:
    declare(app, seen, is_async=is_async)
    app.observers.append(Notes(seen))

    @app.job
    async def uses(ctx: Context[State]) -> str:
        assert ctx.state.is_open
        return ctx.state.name

    @app.job
    def uses_sync(ctx: Context[State]) -> str:
        assert ctx.state.is_open
        return ctx.state.name

    handles = [uses.enqueue(), uses_sync.enqueue()]
    await drained(app)
    assert [handle.result(0) for handle in handles] == ["pool", "pool"]
    assert (seen[0], seen[1], seen[-2], seen[-1]) == ("enter", "claim", "settled", "leave")
    assert seen.count("enter") == seen.count("leave") == 1


async def test_each_worker_enters_it_for_itself(app: App, seen: list[str], clock: ManualClock) -> None:
    declare(app, seen)

    @app.job
    async def noop() -> None: ...

    async with working(app), working(app):
        await until(lambda: seen == ["enter", "enter"])
    assert seen == ["enter", "enter", "leave", "leave"]


async def connected() -> str:
    raise ConnectionError("no such host")


@pytest.mark.parametrize("is_async", [True, False])
async def test_one_that_fails_to_start_ends_the_worker_and_nothing_is_claimed(
    app: App, store: FaultyStore, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if is_async:

        @app.lifespan
        @asynccontextmanager
        async def database() -> AsyncIterator[str]:
            yield await connected()
    else:

        @app.lifespan
        @contextmanager
        def sync_database() -> Iterator[None]:
            yield connected().send(None)

    @app.job
    async def noop() -> None: ...

    handle = noop.enqueue()
    with pytest.raises(LifespanFailed, match="database failed to start, so nothing was claimed: ConnectionError") as it:
        await drained(app)
    assert isinstance(it.value.__cause__, ConnectionError)
    assert (handle.status(), store.commands(c.Claim)) == (JobState.READY, [])
    (line,) = [record for record in caplog.records if "failed to start" in record.message]
    assert line.exc_info is not None


async def test_one_that_fails_to_stop_is_reported_when_all_jobs_are(app: App, clock: ManualClock) -> None:
    @app.lifespan
    @asynccontextmanager
    async def database() -> AsyncIterator[None]:
        yield
        raise ConnectionError("connection reset")

    @app.job
    async def noop() -> None: ...

    handle = noop.enqueue()
    with pytest.raises(LifespanFailed, match="failed to stop, after the last report: ConnectionError: connection"):
        await drained(app)
    assert handle.status() is JobState.SUCCEEDED


async def test_it_is_left_when_the_store_breaks(app: App, store: FaultyStore, seen: list[str]) -> None:
    declare(app, seen)

    @app.job
    async def breaks() -> None:
        store.refuses = Broken("the log is damaged")

    breaks.enqueue()
    with pytest.raises(Broken):
        await drained(app)
    assert seen == ["enter", "leave"]


async def test_one_that_ends_by_itself_stops_the_worker(app: App, seen: list[str]) -> None:
    task: list[asyncio.Task[Any] | None] = []

    @app.lifespan
    @asynccontextmanager
    async def group() -> AsyncIterator[None]:
        task.append(asyncio.current_task())
        yield

    @app.job
    async def noop() -> None: ...

    worker = Worker(app, handle_signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.metrics.claims)
    assert task[0] is not None
    task[0].cancel()
    with pytest.raises(LifespanFailed, match="ended while the worker ran: it was cancelled"):
        await asyncio.wait_for(running, 30)


async def test_jobs_are_given_back_when_it_ends_by_itself(app: App) -> None:
    task: list[asyncio.Task[Any] | None] = []

    @app.lifespan
    @asynccontextmanager
    async def group() -> AsyncIterator[None]:
        task.append(asyncio.current_task())
        yield

    @app.job
    def listens(ctx: Context) -> None:
        ctx.lost.wait(600)

    handle = listens.enqueue()
    worker = Worker(app, handle_signals=False, shutdown_timeout=3)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.metrics.running)
    assert task[0] is not None
    task[0].cancel()
    with pytest.raises(LifespanFailed):
        await asyncio.wait_for(running, 30)
    assert handle.status() is JobState.READY


async def test_a_worker_that_is_stopped_while_it_starts_is_gone(app: App, store: FaultyStore, seen: list[str]) -> None:
    begun = asyncio.Event()

    @app.lifespan
    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        try:
            begun.set()
            await asyncio.sleep(60)
            yield
        finally:
            seen.append("cleaned up")

    @app.job
    async def noop() -> None: ...

    async with working(app):
        await begun.wait()
    assert (seen, store.commands(c.Claim)) == (["cleaned up"], [])


async def test_one_that_does_not_end_does_not_keep_the_worker(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.lifespan
    @asynccontextmanager
    async def stays() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(60)

    @app.job
    async def noop() -> None: ...

    async with working(app, shutdown_timeout=0.2) as worker:
        await until(lambda: worker.metrics.claims)
    assert "the lifespan test_one_that_does_not_end_does_not_keep_the_worker.<locals>.stays did not end" in caplog.text


async def test_drain_enters_it_once_however_often_the_clock_moves(
    app: App, clock: ManualClock, seen: list[str]
) -> None:
    declare(app, seen)
    runs: list[str] = []

    @app.job
    def uses(ctx: Context[State]) -> None:
        ctx.state.used_by.append(ctx.job_id)
        runs[:] = ctx.state.used_by

    for delay in (0, 10, 20):
        uses.options(delay=delay).enqueue()
    await adrain(app, clock)
    assert len(runs) == 3
    assert seen == ["enter", "leave"]


async def test_a_program_can_enter_it_itself(app: App, seen: list[str]) -> None:
    declare(app, seen)
    async with app.entered_lifespan() as state:
        assert isinstance(state, State)
        assert seen == ["enter"]
    assert seen == ["enter", "leave"]


async def test_without_one_there_is_no_state(app: App, clock: ManualClock) -> None:
    @app.job
    def uses(ctx: Context) -> bool:
        return ctx.state is None

    handle = uses.enqueue()
    await drained(app)
    assert handle.result(0)


def test_wrong_ones_are_refused_where_they_are_written(app: App) -> None:
    async def forgot_the_decorator() -> AsyncIterator[None]:
        yield

    with pytest.raises(Invalid, match="forgot_the_decorator does not return a context manager: write @asynccontextm"):
        app.lifespan(forgot_the_decorator)  # type: ignore[type-var]

    def forgot_it_too() -> Iterator[None]:
        yield

    with pytest.raises(Invalid, match="forgot_it_too does not return a context manager: write @contextmanager"):
        app.lifespan(forgot_it_too)  # type: ignore[type-var]

    declare(app, [])
    with pytest.raises(Invalid, match=r"this app has a lifespan, declare.<locals>.resources: set up inside it what"):
        declare(app, [], is_async=False)


async def test_what_is_no_context_manager_is_named(app: App) -> None:
    app.lifespan(lambda: 7)  # type: ignore[type-var]
    with pytest.raises(Invalid, match="does not return a context manager: write @asynccontextmanager"):
        async with app.entered_lifespan():
            pass


def test_the_command_ends_with_a_message_and_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
        from contextlib import contextmanager
        from leasemill import App

        app = App("memory:")

        @app.lifespan
        @contextmanager
        def model():
            raise FileNotFoundError("model.bin is missing")
            yield

        @app.job
        def noop() -> None: ...
        """
    (tmp_path / "lifespan_that_fails.py").write_text(textwrap.dedent(program))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = CliRunner().invoke(main, ["worker", "lifespan_that_fails:app"])
    assert done.exit_code == 1
    sentence = "the lifespan model failed to start, so nothing was claimed: FileNotFoundError: model.bin is missing"
    assert f"Error: {sentence}" in done.output
    sys.modules.pop("lifespan_that_fails", None)


async def test_a_sync_handler_sees_the_state_in_its_thread(app: App, clock: ManualClock, seen: list[str]) -> None:
    declare(app, seen)
    threads: list[bool] = []

    @app.job
    def uses(ctx: Context[State]) -> None:
        threads.append(threading.current_thread() is not threading.main_thread() and ctx.state.is_open)

    uses.enqueue()
    await drained(app)
    assert threads == [True]
