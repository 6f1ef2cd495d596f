"""Groups and chains in a running worker on PostgreSQL, beside statements of the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from leasemill import App, Context, Fail
from leasemill.cli import main
from leasemill.testing.drain import drain
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


def test_groups_are_shown_sealed_redriven_cancelled_and_explained(app: App, postgres_url: str) -> None:
    mended: list[int] = []

    @app.job(retry=0)
    async def load(row: int) -> int:
        if row == 1 and not mended:
            raise Fail("row 1")
        return row

    @app.job
    async def report() -> None: ...

    def leasemill(*arguments: str) -> Any:
        result = CliRunner().invoke(main, [*arguments, "--url", postgres_url, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    group = app.group("import-17", then=report.call())
    group.enqueue_many(load.options(job_id=f"row-{row}").call(row) for row in range(3))
    drain(app)
    assert leasemill("jobs", "explain", "import-17/then")["advice"] == ["leasemill groups seal import-17 --reason …"]
    assert leasemill("groups", "seal", "import-17", "--reason", "its producer is gone")["state"] == "ended"
    assert leasemill("groups", "list", "--open") == []
    shown = leasemill("groups", "show", "import-17")
    assert (shown["succeeded"], shown["failed"], shown["members"]["failed"]) == (2, 1, ["row-1"])
    assert "is a member of group 'import-17'" in leasemill("jobs", "explain", "row-1")["now"][-1]
    mended.append(1)
    assert leasemill("groups", "redrive", "import-17", "--reason", "mended")["job_ids"] == ["row-1"]
    drain(app)
    assert leasemill("groups", "show", "import-17")["then"]["state"] == "succeeded"
    app.group("other").enqueue_many(load.call(row) for row in range(3))
    assert len(leasemill("groups", "cancel", "other", "--reason", "enough")["job_ids"]) == 3
    states = {one["id"]: one["state"] for one in leasemill("groups", "list")}
    assert states == {"import-17": "succeeded", "other": "ended"}
