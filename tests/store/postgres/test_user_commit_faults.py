"""`ctx.commit()` on PostgreSQL when connections are lost or too few: resolved by asking, never by guessing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from leasemill import App, Context, JobState
from leasemill.errors import LeaseLost, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.verbs.commit import followup_id
from leasemill.store.postgres.driver import simple_query
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.statements import Execute
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.transactions import own_cursors
from leasemill.testing.rules import rule
from tests.store.postgres.committing import (
    SOON,
    WRITE,
    Connection,
    cents,
    drained,
    entered,
    entered_sync,
    held,
    nothing,
)
from tests.worker.support import until, working


@pytest.fixture
def app(postgres_url: str, bank: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("LEASEMILL_URL", postgres_url)
    with App(postgres_url) as made:
        yield made


# Connections that are lost ---------------------------------------------------------------------------------------


def terminate(bank: Connection) -> None:
    bank.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'leasemill commit'")


@pytest.mark.parametrize("is_async", [True, False])
async def test_idle_connections_that_were_cut_are_replaced_unnoticed(
    app: App, bank: Connection, is_async: bool
) -> None:
    for _ in range(3):
        context, _ = held(app)
        await entered(context, is_async)
        terminate(bank)
    assert cents(bank) == 21


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_connection_cut_in_the_block_fails_the_run_and_the_next_one_applies_it_once(
    app: App, bank: Connection, is_async: bool
) -> None:
    @app.job(name="cut", retry=SOON)
    async def cut_async(ctx: Context) -> None:
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [1])
            if ctx.attempt == 1:
                terminate(bank)
            await tx.execute(WRITE, [1])

    @app.job(name="cut_too", retry=SOON)
    def cut_sync(ctx: Context) -> None:
        with ctx.commit() as tx:
            tx.execute(WRITE, [1])
            if ctx.attempt == 1:
                terminate(bank)
            tx.execute(WRITE, [1])

    handle = (cut_async if is_async else cut_sync).enqueue()
    await drained(app)
    assert (handle.status(), handle.record().retries, cents(bank)) == (JobState.SUCCEEDED, 1, 2)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_connection_lost_around_commit_is_resolved_by_asking(
    app: App, bank: Connection, monkeypatch: pytest.MonkeyPatch, is_async: bool, is_done: bool
) -> None:
    """Its reply is lost, or COMMIT itself: the run has succeeded, or is repeated; the effect is there once."""
    cuts = iter([True])
    real_send, real_asend = simple_query.send, simple_query.asend

    def cut(connection: Any) -> None:
        connection.pgconn.finish()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    async def asend(connection: psycopg.AsyncConnection[Any], message: bytes) -> Any:
        if b";commit;" in message and next(cuts, False):
            if is_done:
                await real_asend(connection, message)
            cut(connection)
        return await real_asend(connection, message)

    def send(connection: Connection, message: bytes) -> Any:
        if b";commit;" in message and next(cuts, False):
            if is_done:
                real_send(connection, message)
            cut(connection)
        return real_send(connection, message)

    monkeypatch.setattr(simple_query, "asend", asend)
    monkeypatch.setattr(simple_query, "send", send)

    @app.job(name="cut", retry=SOON)
    async def cut_async(ctx: Context) -> None:
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [1])
            tx.enqueue(nothing(app))

    @app.job(name="cut_too", retry=SOON)
    def cut_sync(ctx: Context) -> None:
        with ctx.commit() as tx:
            tx.execute(WRITE, [1])
            tx.enqueue(nothing(app))

    handle = (cut_async if is_async else cut_sync).enqueue()
    await drained(app)
    job = handle.record()
    assert job.state is JobState.SUCCEEDED
    assert (job.attempt, job.retries) == ((1, 0) if is_done else (2, 1))
    assert cents(bank) == 1
    assert app.handle(followup_id(handle.id, 0)).status() is JobState.SUCCEEDED
    if not is_done:
        assert "the connection was lost before job" in (job.executions[0].error or "")


@pytest.mark.parametrize("ends_with", ["commit", "rollback"])
def test_the_question_waits_for_a_commit_that_is_under_way(
    app: App, bank: Connection, postgres_url: str, ends_with: str
) -> None:
    """The server may still be at it when the client has long lost the connection."""
    store = app.store
    assert isinstance(store, PostgresStore)
    _, lease = held(app)
    command = c.Commit(lease.job.id, lease.token)
    with psycopg.connect(parse_url(postgres_url)[0], autocommit=True) as lost:
        lost.execute("begin")
        given = {"id": lease.job.id, "token": lease.token, "result": None}
        own_cursors.rows(lost, *store._thread_driver.statements.complete(Execute("commit_lease", given)))
        asked: list[str] = []

        def end() -> None:
            asked.append(ends_with)
            lost.execute(ends_with.encode())

        ending = threading.Timer(0.3, end)
        ending.start()
        outcome = store.settle(command)
        assert asked, "it was answered while the commit was under way"
        ending.join()
    assert outcome == (c.Committed(lease.job.id, (), is_repeat=True) if ends_with == "commit" else None)


@rule("X5")
def test_a_commit_that_arrives_after_its_run_was_given_up_is_refused(app: App, bank: Connection) -> None:
    """What the question cannot know, the nack that follows settles: it takes the lease, or finds it committed."""
    store = app.store
    assert isinstance(store, PostgresStore)
    context, lease = held(app)
    with pytest.raises(LeaseLost):
        entered_sync(context, lambda: store.nack([c.NackReport(lease.job.id, lease.token, "given up")]))
    assert cents(bank) == 0


async def test_while_the_store_is_away_a_block_is_entered_later_or_given_up(app: App, bank: Connection) -> None:
    context, _ = held(app)
    store = app.store
    assert isinstance(store, PostgresStore)
    conninfo, store._commits._conninfo = store._commits._conninfo, "host=/nowhere port=1"
    context.lost.held_until = time.monotonic() + 0.3
    with pytest.raises(LeaseLost):
        await entered(context, True)
    context, _ = held(app)
    back = asyncio.get_running_loop().call_later(0.2, setattr, store._commits, "_conninfo", conninfo)
    await entered(context, True)
    back.cancel()
    assert cents(bank) == 7


# How many --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_more_handlers_than_connections_take_turns(
    postgres_url: str, bank: Connection, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{postgres_url}&commit_pool_size=2"
    monkeypatch.setenv("LEASEMILL_URL", url)
    with App(url) as app:

        @app.job(name="deposit")
        async def deposit_async(ctx: Context) -> None:
            async with ctx.commit() as tx:
                await tx.execute(WRITE, [1])
                await asyncio.sleep(0.01)

        @app.job(name="deposit_too")
        def deposit_sync(ctx: Context) -> None:
            with ctx.commit() as tx:
                tx.execute(WRITE, [1])
                time.sleep(0.01)

        job = deposit_async if is_async else deposit_sync
        job.enqueue_many([job.call() for _ in range(40)])
        worker = await drained(app, concurrency=8)
        assert worker.metrics.succeeded == 40
        assert cents(bank) == 40
        row = bank.execute(
            "select count(*) from pg_stat_activity where application_name = 'leasemill commit'"
        ).fetchone()
        assert row is not None
        assert row[0] <= 2


def test_a_pool_that_stays_exhausted_says_which_option_to_raise(postgres_url: str, bank: Connection, app: App) -> None:
    with PostgresStore(f"{postgres_url}&commit_pool_size=1&pool_timeout_s=0.1") as store:
        (first, _), (_, second) = held(app, store), held(app, store)

        async def one_too_many() -> None:
            async with first.commit():
                await store.block(second, 5.0).abegin()

        with pytest.raises(Unavailable, match="raise commit_pool_size"):
            asyncio.run(one_too_many())
        with first.commit(), pytest.raises(Unavailable, match="raise commit_pool_size"):
            store.block(second, 5.0).begin()
        assert isinstance(store.extend([c.LeaseRef(second.job.id, second.token)])[0], c.Extended)


async def test_a_worker_at_full_load_commits_every_job_once(app: App, bank: Connection) -> None:
    @app.job(queue="many", retry=SOON)
    async def deposit(ctx: Context, number: int) -> None:
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [number])

    deposit.enqueue_many([deposit.call(number) for number in range(300)])
    async with working(app, queues=["many"]) as worker:
        await until(lambda: worker.metrics.succeeded == 300, limit_s=30)
    assert cents(bank) == sum(range(300))
