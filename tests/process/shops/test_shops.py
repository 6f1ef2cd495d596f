"""A few kills of each shop's workers, a zombie in each, and that the audit would notice what it looks for.

At full length: `make chaos-shops`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from leasemill.testing.postgres import PostgresServer
from tests.process.shops import money
from tests.process.shops.lab import SHOPS, ShopLab


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server


@pytest.mark.timeout(180)
@pytest.mark.parametrize("shop", SHOPS)
def test_each_order_is_charged_and_shipped_once(server: PostgresServer, tmp_path: Path, shop: str) -> None:
    with ExitStack() as cleaning:
        outcome = ShopLab(server, shop, tmp_path, 1, cleaning).run(kills=2, zombies=1, workers_at_once=2)
    assert outcome.wrong == []
    assert outcome.orders > 0


@pytest.fixture
def mine(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.url()) as connection:
        money.open_shop(connection)
        connection.execute("insert into orders values ('order-1', 'ann', 500)")
        connection.execute("insert into ledger (order_id, cents) values ('order-1', 500)")
        connection.execute("insert into shipments (order_id) values ('order-1')")
        connection.execute("update accounts set cents = cents - 500 where name = 'ann'")
        connection.execute("update accounts set cents = cents + 500 where name = 'shop'")
        yield connection
        connection.rollback()


def test_the_audit_notices_what_is_lost_doubled_or_should_not_be(mine: psycopg.Connection[Any]) -> None:
    assert list(money.wrong(mine)) == []
    mine.execute("insert into shipments (order_id) values ('order-1'), ('order-7')")
    mine.execute("delete from ledger")
    mine.execute("update accounts set cents = cents - 1 where name = 'bob'")
    assert list(money.wrong(mine)) == [
        "order order-1 is 0 times in ledger",
        "order order-1 is 2 times in shipments",
        "shipments has order-7, which was rolled back",
        f"bob has {money.BEGUN_WITH - 1} cents, and should have {money.BEGUN_WITH}",
    ]
