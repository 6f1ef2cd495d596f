"""Groups and chains in a running worker on PostgreSQL, beside statements of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from leasemill import App, Context
from leasemill.testing.rules import rule
from tests.worker.group_suite import LIMIT_S, GroupSuite, over
from tests.worker.support import working


@pytest.fixture
def app(postgres_url: str) -> Iterator[App]:
    with App(postgres_url) as made:
        yield made


class TestPostgres(GroupSuite):
    pass


@rule("B5", "X6")
async def test_members_come_with_the_users_statements_or_not_at_all(app: App, bank: psycopg.Connection[Any]) -> None:
    @app.job
    async def book(cents: int) -> int:
        return cents

    @app.job
    def split(ctx: Context) -> None:
        if ctx.attempt == 1:
            with ctx.commit() as tx:
                tx.execute("update balance set cents = cents + 100 where account = 'ann'")
                ctx.group.enqueue(book.call(1))
                raise ValueError("rolled back")
        with ctx.commit() as tx:
            tx.execute("update balance set cents = cents + 1 where account = 'ann'")
            ctx.group.enqueue(book.call(1))

    async with app.group("books") as group:
        await group.aenqueue(split.call())
    async with working(app):
        assert await group.await_end(LIMIT_S) == over(2, succeeded=2)
    assert bank.execute("select cents from balance where account = 'ann'").fetchone() == (1,)


def test_members_come_with_the_users_transaction(app: App, bank: psycopg.Connection[Any], server_url: str) -> None:
    @app.job
    async def book(cents: int) -> int:
        return cents

    group = app.group("books").create()
    with psycopg.connect(server_url) as connection:
        calls = [book.using(connection).call(cents).in_group("books") for cents in (1, 2)]
        book.using(connection).enqueue_many(calls)
        assert group.status().total == 0, "not committed yet"
        connection.rollback()
        assert group.status().total == 0
        again = [book.using(connection).call(cents).in_group("books") for cents in (1, 2)]
        book.using(connection).enqueue_many(again)
        connection.commit()
    assert group.status().total == 2
