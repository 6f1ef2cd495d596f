"""Every log line of a worker carries the worker's id."""

from __future__ import annotations

import ast
import asyncio
import logging
from pathlib import Path

import pytest

import leasemill.worker
from leasemill import App, Context, Worker
from leasemill.api.logs import STORE_LOGGERS
from tests.worker.support import FaultyStore, until, working

LEVELS = {"debug", "info", "warning", "error", "critical", "exception", "log"}


def test_no_log_call_of_the_worker_is_without_fields() -> None:
    """Rare lines are tested rarely: so the calls themselves are looked at."""
    calls = 0
    for path in Path(*leasemill.worker.__path__).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "log" and node.func.attr in LEVELS:
                calls += 1
                assert "extra" in {keyword.arg for keyword in node.keywords}, f"{path.name}:{node.lineno}"
    assert calls > 20


async def test_lines_about_an_unavailable_store_carry_the_workers_id(
    app: App, store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "leasemill")

    @app.job(lease=0.5, timeout=60)
    async def cuts_off(ctx: Context) -> None:
        if ctx.attempt == 1:
            store.is_away = True
            await asyncio.sleep(60)

    handle = cuts_off.enqueue()
    async with working(app, worker_id="mill-1", concurrency=2):
        await until(lambda: "lease lost" in caplog.text, limit_s=60)
        store.is_away = False
        await handle.aresult(60)
    records = [record for record in caplog.records if record.name.startswith("leasemill")]
    assert len({record.msg for record in records}) > 6
    assert {getattr(record, "worker", None) for record in records} == {"mill-1"}


async def test_a_drain_warns_of_paused_queues_that_keep_jobs(
    app: App, store: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    def noop() -> None: ...

    noop.enqueue()
    store.pause("default", by="ann", reason="test")
    await Worker(app, drain=True, handle_signals=False).run()
    assert "queue default is paused, 1 job left waiting: leasemill queues resume default" in caplog.text
    caplog.clear()
    store.resume("default", by="ann", reason="test")
    await Worker(app, drain=True, handle_signals=False).run()
    assert "paused" not in caplog.text


@pytest.mark.parametrize("name", STORE_LOGGERS)
async def test_lines_of_a_store_carry_the_id_of_the_worker_that_runs_in_their_process(
    app: App, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Embedded in a program that configures logging itself. A store knows no worker."""

    @app.job
    async def noop() -> None: ...

    async with working(app, worker_id="mill-1") as worker:
        await until(lambda: worker.metrics.reaper_runs, "the worker to start")
        logging.getLogger(name).warning("retention postponed")
    logging.getLogger(name).warning("nobody works here")
    workers = {record.message: getattr(record, "worker", None) for record in caplog.records if record.name == name}
    assert workers == {"retention postponed": "mill-1", "nobody works here": None}
