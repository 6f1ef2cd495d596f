"""One call that kills a job at every point: it passes safe handlers, and fails unsafe ones, on every store."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import psycopg2
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from leasemill import App, Context, Fail
from leasemill.errors import Invalid
from leasemill.testing.binding import STORE_KINDS, StoreKind
from leasemill.testing.database import PostgresSchema
from leasemill.testing.every_crash import EveryCrash, Point

ON_EVERY_STORE = pytest.mark.parametrize("store", STORE_KINDS)
app = App("file:./must-not-be-opened")
calls: Counter[str] = Counter()
"""What handlers have done outside any transaction."""


@app.job
def mails_before_the_commit(ctx: Context) -> None:
    calls["mail"] += 1
    with ctx.commit():
        pass


@app.job
async def mails_before_the_commit_async(ctx: Context) -> None:
    calls["mail"] += 1
    async with ctx.commit():
        pass


@app.job
def mails_after_the_commit(ctx: Context) -> None:
    with ctx.commit():
        pass
    calls["mail"] += 1


@app.job
def mails() -> None:
    calls["mail"] += 1


@app.job
def mails_with_a_follow_up(ctx: Context) -> None:
    with ctx.commit() as tx:
        tx.enqueue(mails_once)


@app.job
def mails_once(ctx: Context) -> None:
    """Whoever receives it recognises a repeat."""
    calls[f"mail {ctx.idempotency_key.partition('/')[2]}"] = 1


@app.job
def fails() -> None:
    raise Fail("no address")


@ON_EVERY_STORE
@pytest.mark.parametrize(
    ("kind", "killed", "count"),
    [
        ("mails_before_the_commit", "before_commit", 2),
        ("mails_before_the_commit", "lease_lost", 2),
        ("mails_before_the_commit_async", "before_commit", 2),
        ("mails_after_the_commit", "after_commit", 0),
        ("mails", "before_ack", 2),
        ("mails", "lease_lost", 2),
    ],
)
def test_an_unsafe_handler_fails_with_the_point_and_the_difference(
    leasemill_every_crash: EveryCrash, store: StoreKind, kind: str, killed: str, count: int
) -> None:
    with pytest.raises(AssertionError) as raised:
        leasemill_every_crash(app, app.jobs[kind].enqueue, effect=lambda: calls["mail"], reset=calls.clear, store=store)
    first, *lines = str(raised.value).splitlines()
    assert first == "a crash changes the effect of the job:"
    assert f"  {killed} of {kind}: effect() is {count}, and 1 without a crash" in lines
    assert not any("before_start" in line for line in lines)


@ON_EVERY_STORE
def test_a_safe_handler_and_its_follow_up_pass_at_every_point(
    leasemill_every_crash: EveryCrash, store: StoreKind
) -> None:
    points = leasemill_every_crash(
        app, mails_with_a_follow_up.enqueue, effect=lambda: dict(calls), reset=calls.clear, store=store
    )
    parent, child = mails_with_a_follow_up.kind, mails_once.kind
    assert set(points) == {
        *((parent, point) for point in ("before_start", "before_commit", "after_commit", "before_ack", "lease_lost")),
        *((child, point) for point in ("before_start", "before_ack", "lease_lost")),
    }


async def test_async_tests_await_it(
    leasemill_aevery_crash: Callable[..., Awaitable[list[Point]]],
) -> None:
    async def reset() -> None:
        calls.clear()

    async def effect() -> dict[str, int]:
        return dict(calls)

    points = await leasemill_aevery_crash(app, mails_with_a_follow_up.aenqueue, effect=effect, reset=reset)
    assert len(points) == 8
    with pytest.raises(AssertionError, match="before_commit of mails_before_the_commit_async: effect"):
        await leasemill_aevery_crash(app, mails_before_the_commit_async.aenqueue, effect=effect, reset=reset)


class TestWithTables:
    """The effect is a row of the user's, on PostgreSQL."""

    @pytest.fixture
    def bank(self, leasemill_postgres: PostgresSchema) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(leasemill_postgres.conninfo, autocommit=True) as connection:
            connection.execute("create table accounts (name text primary key, cents int8 not null)")
            connection.execute("insert into accounts values ('ann', 0)")
            yield connection
            connection.execute("drop table accounts")

    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.leasemill(store="postgresql")
    def test_what_is_written_in_the_commit_is_there_once(
        self, bank: psycopg.Connection[Any], leasemill_every_crash: EveryCrash, is_async: bool
    ) -> None:
        bank_app = App("memory:")

        @bank_app.job
        def charge(ctx: Context, name: str, cents: int) -> None:
            with ctx.commit() as tx:
                tx.execute("update accounts set cents = cents + %s where name = %s", [cents, name])

        @bank_app.job
        async def charge_async(ctx: Context, name: str, cents: int) -> None:
            async with ctx.commit() as tx:
                await tx.execute("update accounts set cents = cents + %s where name = %s", [cents, name])

        job = charge_async if is_async else charge
        points = leasemill_every_crash(
            bank_app,
            lambda: job.enqueue("ann", 500),
            effect=lambda: bank.execute("select cents from accounts").fetchall(),
            reset=lambda: bank.execute("update accounts set cents = 0"),
        )
        assert len(points) == 5

    @pytest.mark.parametrize("driver", ["psycopg", "psycopg-async", "psycopg2", "sqlalchemy", "sqlalchemy-async"])
    @pytest.mark.leasemill(store="postgresql")
    def test_what_is_written_in_a_session_that_the_commit_joins_is_there_once(
        self,
        bank: psycopg.Connection[Any],
        leasemill_postgres: PostgresSchema,
        leasemill_every_crash: EveryCrash,
        driver: str,
    ) -> None:
        bank_app, conninfo = App("memory:"), leasemill_postgres.conninfo
        statement = "update accounts set cents = cents + %s where name = %s"
        in_words = "update accounts set cents = cents + :cents where name = :name"

        if driver == "psycopg-async":

            @bank_app.job
            async def charge(ctx: Context, name: str, cents: int) -> None:
                async with await psycopg.AsyncConnection.connect(conninfo) as own, ctx.commit(own):
                    await own.execute(statement, [cents, name])

        elif driver == "sqlalchemy":
            engine = create_engine(
                "postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo), poolclass=NullPool
            )

            @bank_app.job(name="charge")
            def charge_in_session(ctx: Context, name: str, cents: int) -> None:
                with Session(engine) as session, ctx.commit(session):
                    session.execute(text(in_words), {"cents": cents, "name": name})

        elif driver == "sqlalchemy-async":
            async_engine = create_async_engine(
                "postgresql+psycopg://",
                async_creator=lambda: psycopg.AsyncConnection.connect(conninfo),
                poolclass=NullPool,
            )

            @bank_app.job(name="charge")
            async def charge_in_async_session(ctx: Context, name: str, cents: int) -> None:
                async with AsyncSession(async_engine) as session, ctx.commit(session):
                    await session.execute(text(in_words), {"cents": cents, "name": name})

        else:

            @bank_app.job(name="charge")
            def charge_in_thread(ctx: Context, name: str, cents: int) -> None:
                connect: Callable[..., Any] = psycopg.connect if driver == "psycopg" else psycopg2.connect
                with closing(connect(conninfo)) as own, ctx.commit(own):
                    own.cursor().execute(statement, [cents, name])

        points = leasemill_every_crash(
            bank_app,
            lambda: bank_app.jobs["charge"].enqueue("ann", 500),
            effect=lambda: bank.execute("select cents from accounts").fetchall(),
            reset=lambda: bank.execute("update accounts set cents = 0"),
        )
        assert len(points) == 5

    @pytest.mark.leasemill(store="postgresql")
    def test_what_is_written_in_another_transaction_is_there_twice(
        self,
        bank: psycopg.Connection[Any],
        leasemill_postgres: PostgresSchema,
        leasemill_every_crash: EveryCrash,
    ) -> None:
        bank_app = App("memory:")

        @bank_app.job
        def charge(ctx: Context, name: str, cents: int) -> None:
            with psycopg.connect(leasemill_postgres.conninfo) as own, ctx.commit():
                own.execute("update accounts set cents = cents + %s where name = %s", [cents, name])
                own.commit()

        with pytest.raises(AssertionError, match=r"before_commit of charge: effect\(\) is \[\(1000,\)\], and \[\(500,"):
            leasemill_every_crash(
                bank_app,
                lambda: charge.enqueue("ann", 500),
                effect=lambda: bank.execute("select cents from accounts").fetchall(),
                reset=lambda: bank.execute("update accounts set cents = 0"),
            )


@pytest.mark.parametrize("store", ["memory", "file"])
def test_an_effect_under_once_passes(leasemill_every_crash: EveryCrash, store: StoreKind, tmp_path: Path) -> None:
    own, path = App("memory:"), tmp_path / "effects.db"

    @own.job
    def charge(ctx: Context, cents: int) -> None:
        connection = sqlite3.connect(path)
        with ctx.once(connection) as first:
            if first:
                connection.execute("insert into charges values (?)", [cents])
        connection.close()

    def execute(statement: str) -> list[Any]:
        connection = sqlite3.connect(path)
        with connection:
            rows = connection.execute(statement).fetchall()
        connection.close()
        return rows

    execute("create table charges (cents integer)")
    leasemill_every_crash(
        own,
        lambda: charge.enqueue(500),
        effect=lambda: execute("select cents from charges"),
        reset=lambda: execute("delete from charges"),
        store=store,
    )


def test_hooks_around_a_run_do_not_save_it(leasemill_every_crash: EveryCrash) -> None:
    own, ended = App("memory:"), Counter[str]()

    @own.around
    @contextmanager
    def swallows(ctx: Context) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001
            ended[type(error).__name__] += 1

    @own.job
    def charge(ctx: Context) -> None:
        with ctx.commit():
            pass
        calls["mail"] = 1

    with pytest.raises(AssertionError) as raised:
        leasemill_every_crash(own, charge.enqueue, effect=lambda: calls["mail"], reset=calls.clear)
    assert str(raised.value).splitlines()[1:] == ["  after_commit of charge: effect() is 0, and 1 without a crash"]
    assert ended == {"WorkerCrashed": 2, "LeaseLost": 1}


def test_an_effect_that_adds_up_needs_a_reset(leasemill_every_crash: EveryCrash) -> None:
    calls.clear()
    with pytest.raises(Invalid, match=r"returns 1 before the next run, and returned 0 before the first: pass reset="):
        leasemill_every_crash(app, mails.enqueue, effect=lambda: calls["mail"])


def test_an_effect_that_shows_nothing_is_refused(leasemill_every_crash: EveryCrash) -> None:
    with pytest.raises(Invalid, match=r"effect\(\) returns None before and after the job ran"):
        leasemill_every_crash(app, mails.enqueue, effect=lambda: None)


def test_an_effect_that_is_one_mutable_object_is_compared_as_it_was(leasemill_every_crash: EveryCrash) -> None:
    with pytest.raises(AssertionError, match=r"before_ack of mails: effect\(\) is Counter\(\{'mail': 2\}\)"):
        leasemill_every_crash(app, mails.enqueue, effect=lambda: calls, reset=calls.clear)


def test_a_handler_that_fails_by_itself_is_not_blamed_on_a_crash(leasemill_every_crash: EveryCrash) -> None:
    with pytest.raises(AssertionError, match="fails without any crash: Fail: no address"):
        leasemill_every_crash(app, fails.enqueue, effect=lambda: 0)


def test_nothing_to_run_is_refused(leasemill_every_crash: EveryCrash) -> None:
    with pytest.raises(Invalid, match="no job ran"):
        leasemill_every_crash(app, lambda: None, effect=lambda: 0)


def test_a_job_that_does_not_survive_its_crash_is_named(leasemill_every_crash: EveryCrash) -> None:
    own = App("memory:")

    @own.job
    def fragile() -> None:
        if calls["mail"]:
            raise Fail("sent already")
        calls["mail"] = 1

    with pytest.raises(AssertionError, match="before_ack of fragile: fragile ended failed: Fail: sent already"):
        leasemill_every_crash(own, fragile.enqueue, effect=lambda: calls["mail"], reset=calls.clear)
