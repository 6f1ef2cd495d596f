"""The lifespan of a web application: the store and the worker begin and end with it, and no end goes unnoticed."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from leasemill import App, Broken, Context, Invalid, JobState, Worker, open_store
from leasemill.contrib.starlette import Health, WorkerOptions, health, lifespan
from leasemill.testing.drain import in_memory

LONG_S = 30.0
"""Longer than any of these takes; a fault exceeds it."""


def make_app(url: str = "memory:") -> App:
    app = App(url)

    @app.job(name="double")
    async def double(number: int) -> int:
        return number * 2

    return app


@asynccontextmanager
async def served(web: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """As a server serves: with its lifespan."""
    async with (
        web.router.lifespan_context(web),
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://example") as client,
    ):
        yield client


def is_open(app: App) -> bool:
    return app.is_open


async def until(condition: Any) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110 (it is another task's, or a thread's)
            await asyncio.sleep(0.01)


async def test_the_store_is_open_while_the_application_serves(tmp_path: Path) -> None:
    app = make_app(f"file:{tmp_path}/jobs")
    web = FastAPI(lifespan=lifespan(app))
    for _ in range(2):  # a second time in the same process
        assert not is_open(app)
        async with served(web):
            assert is_open(app)
            await app.jobs["double"].aenqueue(1)
            assert health(app) == Health(is_ok=True, reason="no worker in this process")
        assert not is_open(app)
    with open_store(f"file:{tmp_path}/jobs") as store:
        assert [job.state for job in store.jobs().jobs] == [JobState.READY] * 2


async def test_two_applications_share_a_store_and_the_last_one_closes_it(tmp_path: Path) -> None:
    app = make_app(f"file:{tmp_path}/jobs")
    first, second = FastAPI(lifespan=lifespan(app)), FastAPI(lifespan=lifespan(app, worker={}))
    async with served(first):
        async with served(second):
            handle = await app.jobs["double"].aenqueue(4)
            assert await handle.aresult(timeout=LONG_S) == 8
        assert is_open(app)
        assert health(app) == Health(is_ok=True, reason="no worker in this process")
        await app.jobs["double"].aenqueue(5)
    assert not is_open(app)


async def test_a_store_that_was_bound_before_stays_open() -> None:
    app = make_app("postgresql://nobody@localhost:1/nothing")
    with in_memory(app):
        async with served(FastAPI(lifespan=lifespan(app))):
            handle = await app.jobs["double"].aenqueue(1)
        assert handle.status() is JobState.READY


async def test_a_store_that_cannot_be_opened_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    app = make_app(f"file:{tmp_path}/file")
    with pytest.raises(Exception, match="file"):
        async with served(FastAPI(lifespan=lifespan(app))):
            pytest.fail("it started")
    assert not health(app).is_ok


async def test_your_lifespan_is_inside_and_its_state_reaches_requests() -> None:
    app = make_app()
    steps: list[str] = []

    @asynccontextmanager
    async def inside(web: Starlette) -> AsyncIterator[dict[str, str]]:
        steps.append(f"begin, store open: {app.is_open}")
        yield {"colour": "red"}
        steps.append(f"end, {health(app).reason}, store open: {app.is_open}")

    seen: list[object] = []
    web = Starlette(lifespan=lifespan(app, worker={}, inside=inside))
    async with web.router.lifespan_context(web) as state:
        seen.append(state)
        assert health(app).reason == "the worker runs"
    assert seen == [{"colour": "red"}]
    assert steps == ["begin, store open: True", "end, no worker in this process, store open: True"]


async def test_a_worker_in_the_process_runs_what_requests_enqueue() -> None:
    app = make_app()

    async def double(request: Request) -> JSONResponse:
        handle = await app.jobs["double"].aenqueue(int(request.query_params["number"]))
        return JSONResponse({"result": await handle.aresult(timeout=LONG_S), "is_ok": health(app).is_ok})

    web = Starlette(routes=[Route("/double", double)], lifespan=lifespan(app, worker={"concurrency": 2}))
    for number in (1, 2):
        async with served(web) as client:
            answer = await client.get(f"/double?number={number}")
            assert answer.json() == {"result": number * 2, "is_ok": True}


async def test_without_its_lifespan_an_application_enqueues_and_health_says_what_is_missing() -> None:
    app = make_app()
    started: list[str] = []

    @asynccontextmanager
    async def inside(web: Starlette) -> AsyncIterator[None]:
        started.append("inside")
        yield

    async def enqueue(request: Request) -> JSONResponse:
        handle = await app.jobs["double"].aenqueue(1)
        return JSONResponse({"state": await handle.astatus()})

    web = Starlette(routes=[Route("/", enqueue)], lifespan=lifespan(app, worker={}, inside=inside))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://example") as client:
        assert (await client.get("/")).json() == {"state": "ready"}
    assert started == []
    assert health(app).is_ok is False
    assert health(app).reason.startswith("the lifespan is not open")
    app.close()


async def test_a_worker_that_dies_is_reported_by_health_and_by_the_shutdown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    ended: list[bool] = []

    @asynccontextmanager
    async def inside(web: Starlette) -> AsyncIterator[None]:
        yield
        ended.append(app.is_open)

    async def broken(*_arguments: object, **_more: object) -> None:
        raise Broken("the log is damaged")

    web = FastAPI(lifespan=lifespan(app, worker={}, inside=inside))

    @web.get("/healthz")
    def healthz() -> dict[str, Any]:
        found = health(app)
        return {"is_ok": found.is_ok, "reason": found.reason}

    reasons: list[str] = []

    async def serve() -> None:
        async with served(web) as client:
            assert (await client.get("/healthz")).json()["is_ok"] is True
            monkeypatch.setattr(app.store, "arun", broken)
            await until(lambda: not health(app).is_ok)
            reasons.append((await client.get("/healthz")).json()["reason"])

    with pytest.raises(Broken, match="the log is damaged"):
        await serve()
    assert len(reasons) == 1
    assert "has ended: Broken: the log is damaged" in reasons[0]
    assert "requests are served, jobs are not run here" in caplog.text
    assert ended == [True]
    assert not is_open(app)


async def test_a_stop_under_load_gives_jobs_back_within_the_shutdown_timeout() -> None:
    store = open_store("memory:")
    app = App(store=store)
    started: list[bool] = []

    @app.job
    async def waits() -> None:
        started.append(True)
        await asyncio.Event().wait()

    @app.job
    def blocks(ctx: Context) -> None:
        started.append(True)
        ctx.lost.wait(LONG_S)

    @app.job
    async def ends() -> str:
        return "ended"

    web = FastAPI(lifespan=lifespan(app, worker={"concurrency": 6, "shutdown_timeout": 2}))
    async with served(web):
        done = await ends.aenqueue()
        assert await done.aresult(timeout=LONG_S) == "ended"
        handles = [await job.aenqueue() for job in (waits, blocks) * 5]
        await until(lambda: len(started) == 6)
    for handle in handles:
        assert handle.status() is JobState.READY
    store.close()


async def test_the_worker_takes_no_signals() -> None:
    app = make_app()
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with served(FastAPI(lifespan=lifespan(app, worker={}))):
        handle = await app.jobs["double"].aenqueue(1)
        await handle.aresult(timeout=LONG_S)
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


PROGRAM = """
from fastapi import FastAPI
from leasemill import App, Context
from leasemill.contrib.starlette import health, lifespan

jobs = App()

@jobs.job
def slow(ctx: Context) -> str:
    open("started", "w").close()
    ctx.lost.wait(60)
    return "half done"

@jobs.job
async def quick(number: int) -> int:
    return number + 1

web = FastAPI(lifespan=lifespan(jobs, worker={"shutdown_timeout": 2}))

@web.post("/quick")
async def ask(number: int) -> int:
    return await (await quick.aenqueue(number)).aresult(timeout=30)

@web.post("/slow")
async def ask_slow() -> str:
    return (await slow.aenqueue()).id
"""


def test_a_server_that_is_asked_to_end_gives_jobs_back_and_ends(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(textwrap.dedent(PROGRAM))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "LEASEMILL_URL": f"file:{tmp_path}/jobs"}
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "served:web", "--port", str(port), "--log-level", "warning"],
        cwd=tmp_path,
        env=environment,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + LONG_S
        while True:
            try:
                assert httpx.post(f"{url}/quick?number=1", timeout=LONG_S).json() == 2
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.05)
        slow_id = httpx.post(f"{url}/slow", timeout=LONG_S).json()
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        server.wait(LONG_S)
    finally:
        server.kill()
        server.wait()
    # uvicorn raises the signal again when it has shut down
    assert server.returncode in {0, -signal.SIGTERM}
    with open_store(f"file:{tmp_path}/jobs") as store:
        job = store.job(slow_id)
        assert job is not None
        assert job.state is JobState.READY


any_lifespan: Any = lifespan
"""For calls that type checkers refuse."""


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda app: any_lifespan(FastAPI()),
            r"lifespan takes the leasemill.App, not .*: write FastAPI\(lifespan=lifespan",
        ),
        (
            lambda app: any_lifespan(app, worker={"slots": 5}),
            "worker has no option 'slots' here; write some of queues, conc",
        ),
        (lambda app: any_lifespan(app, worker={"handle_signals": True}), "worker has no option 'handle_signals' here"),
        (
            lambda app: any_lifespan(app, worker=True),
            r"worker is True: write its options, such as worker=\{'concurrency': 5",
        ),
        (
            lambda app: any_lifespan(app, inside=plain),
            "inside=plain is not a lifespan: write `@asynccontextmanager` above",
        ),
    ],
)
def test_a_wrong_lifespan_is_refused_where_it_is_written(make: Any, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        make(make_app())


async def plain(web: object) -> AsyncIterator[None]:
    yield


def test_every_option_is_one_of_the_workers() -> None:
    known = set(inspect.signature(Worker).parameters) - {"app", "drain", "drain_wait", "handle_signals"}
    assert set(WorkerOptions.__annotations__) == known


def test_no_framework_is_imported() -> None:
    program = (
        "import sys, leasemill.contrib.starlette; print({'starlette', 'fastapi', 'pydantic'} & sys.modules.keys())"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout == "set()\n"
