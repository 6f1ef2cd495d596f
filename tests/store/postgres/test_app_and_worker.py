"""The App, the worker and the command line on postgresql://, as on every other store."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from leasemill import PREVIOUS, App, Context, Fail, JobState, Retry, Worker, chain
from leasemill.cli import main
from leasemill.kernel.model import JobSpec
from leasemill.kernel.verbs.commit import followup_id
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.worker.support import until, working

SOON = Retry(max=3, base=0, cap=0)
JOBS = 60
LANES = 6

TASKS = """
from leasemill import App, Context, Fail

app = App()

@app.job(queue="mail", lane="to", retry=1)
async def send(ctx: Context, to: str, copies: int = 1) -> int:
    if to == "nobody":
        raise Fail("no such mailbox")
    return copies * 2
"""


@pytest.fixture
def app(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("LEASEMILL_URL", postgres_url)
    with App(postgres_url) as made:
        yield made


async def drained(app: App) -> None:
    await asyncio.wait_for(Worker(app, drain=True, handle_signals=False).run(), 60)


@rule("L8")
def test_a_workers_record_ages_by_the_servers_clock(postgres_url: str) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        store.presence.publish("a", b"1")
        clock.advance(s=5)
        store.presence.publish("b", b"2")
        clock.advance(s=2)
        assert store.presence.records() == [("a", b"1", 7.0), ("b", b"2", 2.0)]
        clock.advance(s=-60)
        assert store.presence.records() == [("a", b"1", 0.0), ("b", b"2", 0.0)], "set back: not younger than new"


# The worker ------------------------------------------------------------------------------------------------------


@rule("F8")
async def test_a_job_that_does_not_match_waits_and_then_fails_by_the_servers_time(postgres_url: str) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        app = App(store=store)

        @app.job
        def send(to: str) -> str:
            return to

        store.enqueue([JobSpec("job", "default", "send", b'{"to":"ada","cc":"bob"}')])
        await drained(app)
        job = app.handle("job").record()
        error = "Mismatch: send: unknown argument 'cc'"
        assert (job.state, job.retries) == (JobState.READY, 0)
        assert (job.executions[0].error or "").startswith(error)
        clock.advance(s=3599)
        await drained(app)
        assert app.handle("job").status() is JobState.READY
        clock.advance(s=61)
        await drained(app)
        job = app.handle("job").record()
        assert (job.state, job.attempt) == (JobState.FAILED, 3)
        assert (job.executions[-1].error or "").startswith(f"{error}\nno worker's code matched since")


async def test_a_worker_drains_lanes_commits_followups_retries_and_failures(app: App) -> None:
    order: list[tuple[int, int]] = []

    @app.job(queue="receipts")
    async def receipt(number: int) -> int:
        return number

    @app.job(lane="account", retry=SOON)
    async def deposit(ctx: Context, account: int, number: int) -> int:
        if number % 10 == 0 and ctx.attempt == 1:
            raise RuntimeError("not yet")
        order.append((account, number))
        async with ctx.commit() as tx:
            tx.set_result(number)
            tx.enqueue(receipt, number)
        return number

    @app.job(retry=SOON)
    def pay(ctx: Context, number: int) -> str:
        if number % 5 == 0:
            raise Fail("never")
        if ctx.attempt < 3 and number % 7 == 0:
            raise RuntimeError("not yet")
        with ctx.commit() as tx:
            tx.set_result(f"paid {number}")
            tx.enqueue(receipt, number)
        return f"paid {number}"

    deposits = await app.aenqueue_many(deposit.call(number % LANES, number) for number in range(JOBS))
    payments = app.enqueue_many(pay.call(number) for number in range(JOBS))
    await drained(app)

    assert [await handle.aresult(0) for handle in deposits] == list(range(JOBS))
    for lane in range(LANES):
        assert [number for account, number in order if account == lane] == list(range(lane, JOBS, LANES))
    for number, handle in enumerate(payments):
        record = handle.record()
        assert record.state is (JobState.FAILED if number % 5 == 0 else JobState.SUCCEEDED)
        assert len(record.executions) == (3 if number % 7 == 0 and number % 5 else 1)
    committed = [*deposits, *(handle for number, handle in enumerate(payments) if number % 5)]
    receipts = [app.store.job(followup_id(handle.id, 0)) for handle in committed]
    assert all(job is not None and job.state is JobState.SUCCEEDED for job in receipts)
    counts = [view.counts[JobState.SUCCEEDED] for view in app.store.queues()]
    assert sum(counts) == 2 * len(committed)


@rule("C1")
async def test_a_drain_does_not_end_while_another_session_has_locked_a_job_that_is_due(
    app: App, postgres_url: str, schema: str
) -> None:
    """A claim skips it; nothing is drained while it is there."""

    @app.job
    def locked() -> None: ...

    handle = locked.enqueue()
    worker = Worker(app, drain=True, handle_signals=False)
    with psycopg.connect(parse_url(postgres_url)[0]) as other:
        other.execute(f"select from {schema}.ready for update".encode())
        draining = asyncio.create_task(worker.run())
        await until(lambda: worker.metrics.claims_empty >= 3)
        assert not draining.done()
        other.rollback()
    await asyncio.wait_for(draining, 60)
    assert handle.status() is JobState.SUCCEEDED


async def test_a_worker_shows_itself_while_it_runs_and_wakes_for_a_job(app: App) -> None:
    gate = asyncio.Event()

    @app.job
    async def waits() -> None:
        await gate.wait()

    async with working(app, worker_id="here"):
        handle = await waits.aenqueue()
        await until(lambda: handle.status() is JobState.LEASED)
        await until(lambda: [name for name, _, _ in app.store.presence.records()] == ["here"])
        gate.set()
        await until(lambda: handle.status() is JobState.SUCCEEDED)
    assert app.store.presence.records() == []


async def test_a_callback_reads_the_results_of_its_group_in_their_order(app: App) -> None:
    @app.job
    async def square(number: int) -> int:
        return number * number

    @app.job
    async def negate(number: int) -> int:
        return -number

    @app.job
    async def add_up(group_id: str) -> list[int]:
        return await (await app.groups.aget(group_id)).aresults()

    async with app.group("squares", then=add_up.call("squares")) as group:
        await group.aenqueue(chain(square.call(7), negate.call(PREVIOUS)))
        await group.aenqueue_many(square.options(priority=number % 10).call(number) for number in range(1_200))
    await drained(app)
    assert await app.handle("squares/then").aresult() == [-49, *(number * number for number in range(1_200))]


# The command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A program whose store is named by the environment."""
    (tmp_path / "postgres_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEMILL_URL", postgres_url)
    monkeypatch.setattr(sys, "path", [*sys.path])
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield postgres_url
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.modules.pop("postgres_tasks", None)


def leasemill(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def result_of(*arguments: str, code: int = 0) -> Any:
    result = leasemill(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def enqueue(arguments: str) -> str:
    result = leasemill("enqueue", "postgres_tasks:app", "send", "--args", arguments)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def drain() -> None:
    result = leasemill("worker", "postgres_tasks:app", "--drain", "--log-level", "error")
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("project")
def test_every_command_that_looks_or_operates_works_on_a_database() -> None:
    good, bad = enqueue('{"to": "ann", "copies": 3}'), enqueue('{"to": "nobody"}')
    assert leasemill("queues", "pause", "mail", "--reason", "a test").exit_code == 0
    drain()
    assert {job["state"] for job in result_of("jobs", "list")["jobs"]} == {"ready"}
    assert leasemill("queues", "resume", "mail", "--reason", "a test").exit_code == 0
    drain()
    assert result_of("jobs", "show", good)["result"] == 6
    assert result_of("jobs", "show", bad)["state"] == "failed"
    assert [queue["name"] for queue in result_of("queues", "list")] == ["mail"]
    assert result_of("stats")
    assert leasemill("jobs", "redrive", "--queue", "mail", "--reason", "a test").exit_code == 0
    assert result_of("jobs", "show", bad)["state"] == "ready"
    assert leasemill("jobs", "cancel", bad, "--reason", "a test").exit_code == 0
    assert result_of("jobs", "show", bad)["state"] == "cancelled"
    assert leasemill("jobs", "purge", "--queue", "mail", "--state", "cancelled", "--reason", "a test").exit_code == 0
    assert leasemill("jobs", "show", bad).exit_code == 1


@pytest.mark.usefixtures("project")
async def test_workers_and_health_know_who_is_at_work(app: App) -> None:
    assert leasemill("health").exit_code == 1

    @app.job
    async def idles() -> None: ...

    async with working(app, worker_id="here"):
        await until(lambda: app.store.presence.records() != [])
        shown = await asyncio.to_thread(result_of, "workers")
        healthy = await asyncio.to_thread(leasemill, "health", "--worker", "here")
    assert "here" in json.dumps(shown)
    assert healthy.exit_code == 0, healthy.output
