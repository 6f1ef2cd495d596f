"""`ctx.once` with a connection to PostgreSQL: the unique key decides between runs, also when they overlap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from leasemill import App, Context
from leasemill.api.effects import Once
from leasemill.errors import Invalid
from leasemill.kernel.model import JobState
from leasemill.store.postgres.driver.url import parse_url
from leasemill.testing.drain import drain, in_memory
from tests.lab.processes import wait_until

SCHEMA = "somebodys_bank"
RACERS = 8

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture
def bank(server_url: str, admin: psycopg.Connection[Any]) -> Iterator[Connect]:
    """Opens connections to one schema with a balance of 0 and without the guard's table."""
    conninfo, _ = parse_url(server_url)
    opened: list[psycopg.Connection[Any]] = []

    def connect(**options: Any) -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(conninfo, options=f"-c search_path={SCHEMA}", **options))
        return opened[-1]

    admin.execute(sql.SQL("create schema {}").format(sql.Identifier(SCHEMA)))
    with connect() as made:
        made.execute("create table balance (cents integer)")
        made.execute("insert into balance values (0)")
    try:
        yield connect
    finally:
        for connection in opened:
            connection.close()
        admin.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(SCHEMA)))


def pay(connection: psycopg.Connection[Any], cents: int = 500) -> None:
    connection.execute("update balance set cents = cents + %s", [cents])


def rows(connect: Connect, query: LiteralString) -> list[Any]:
    with connect() as connection:
        return connection.execute(query).fetchall()


def balance(connect: Connect) -> int:
    return int(rows(connect, "select cents from balance")[0][0])


def guards(connect: Connect) -> list[Any]:
    return rows(connect, "select job, effect, fence from leasemill_once order by job, effect")


def once(connection: psycopg.Connection[Any], fence: int, job: str = "job") -> Once:
    return Once(connection, job, "pay", fence, lambda: None, set())


def test_a_run_that_dies_after_its_effect_is_repeated_without_it(bank: Connect) -> None:
    app = App("memory:")
    firsts: list[bool] = []

    @app.job
    def deposit(ctx: Context) -> None:
        with bank() as connection, ctx.once(connection) as first:
            firsts.append(first)
            pay(connection)
        if ctx.attempt == 1:
            raise ConnectionError("between the effect and the report")

    with in_memory(app) as clock:
        job = deposit.options(job_id="d1").enqueue()
        drain(app, clock)
        assert job.status() is JobState.SUCCEEDED
    assert (firsts, balance(bank), guards(bank)) == ([True, False], 500, [("d1", "deposit", 1)])


@pytest.mark.parametrize(("fence", "later"), [(1, 2), (2, 1)], ids=["a repeat comes later", "a zombie comes later"])
def test_whoever_comes_second_does_nothing(bank: Connect, fence: int, later: int) -> None:
    connection = bank()
    with once(connection, fence) as first:
        pay(connection)
    with once(connection, later) as again:
        pay(connection)
    assert (first, again, balance(bank), guards(bank)) == (True, False, 500, [("job", "pay", fence)])


@pytest.mark.parametrize("table_is_there", [True, False])
@pytest.mark.parametrize("goes_well", [True, False])
def test_a_second_run_waits_for_the_first_ones_transaction_to_end(
    bank: Connect, admin: psycopg.Connection[Any], table_is_there: bool, goes_well: bool
) -> None:
    if table_is_there:
        with once(bank(), 1, "another job"):
            pass
    a, b = bank(), bank()
    came_first: list[bool] = []

    def second() -> None:
        with once(b, 2) as first:
            came_first.append(first)
            pay(b)

    def waits() -> bool:
        return bool(
            admin.execute("select 1 from pg_locks where pid = %s and not granted", [b.info.backend_pid]).fetchone()
        )

    thread = threading.Thread(target=second)
    try:
        with once(a, 1):
            pay(a)
            thread.start()
            wait_until(waits, "the second run to wait for the first")
            if not goes_well:
                raise ConnectionError("in the middle")
    except ConnectionError:
        assert not goes_well
    finally:
        thread.join()
    assert (came_first, balance(bank)) == ([not goes_well], 500)
    assert [row for row in guards(bank) if row[0] == "job"] == [("job", "pay", 1 if goes_well else 2)]


def test_of_many_runs_at_once_one_applies_the_effect(bank: Connect) -> None:
    """From an empty schema, so that they also race to make the table."""
    barrier = threading.Barrier(RACERS)
    firsts: list[bool] = []

    def run(fence: int) -> None:
        connection = bank()
        barrier.wait()
        with once(connection, fence) as first:
            firsts.append(first)
            pay(connection)

    threads = [threading.Thread(target=run, args=[fence]) for fence in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sorted(firsts), balance(bank)) == ([False] * (RACERS - 1) + [True], 500)


def test_a_crash_between_effect_and_commit_leaves_neither(bank: Connect, admin: psycopg.Connection[Any]) -> None:
    connection = bank()
    with suppress(psycopg.OperationalError), once(connection, 1):
        pay(connection)
        admin.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
    assert balance(bank) == 0
    again = bank()
    with once(again, 2) as first:
        pay(again)
    assert (first, balance(bank)) == (True, 500)


def test_a_commit_inside_the_block_is_told(bank: Connect) -> None:
    connection = bank()

    def block() -> None:
        with once(connection, 1):
            connection.commit()
            pay(connection)

    with pytest.raises(Invalid, match="did not last until the end of its block"):
        block()
    assert balance(bank) == 0


def test_a_statement_that_failed_inside_the_block_is_not_passed_over(bank: Connect) -> None:
    """PostgreSQL would answer the commit of a failed transaction with a rollback, and psycopg says nothing."""
    connection = bank()

    def block() -> None:
        with once(connection, 1):
            pay(connection)
            with suppress(psycopg.Error):
                connection.execute("select 1 / 0")

    with pytest.raises(Invalid, match="do not catch a statement's error there"):
        block()
    with once(connection, 2) as first:
        pay(connection)
    assert (first, balance(bank)) == (True, 500)


def test_autocommit_is_refused_and_a_transaction_block_around_it_undoes_everything(bank: Connect) -> None:
    with pytest.raises(Invalid, match=r"set connection\.autocommit = False"):
        once(bank(autocommit=True), 1)
    connection = bank()

    def block() -> None:
        with connection.transaction(), once(connection, 1):
            pay(connection)

    with pytest.raises(psycopg.ProgrammingError, match="forbidden within a Transaction"):
        block()
    assert balance(bank) == 0


def test_a_user_who_may_not_make_tables_is_told_which_one_is_missing(bank: Connect) -> None:
    connection = bank(autocommit=True)
    connection.execute("set default_transaction_read_only = on")
    connection.autocommit = False
    with pytest.raises(psycopg.Error, match=r"leasemill_once|read-only"), once(connection, 1):
        raise AssertionError("never here")
