"""The shop's tables, and the audit: every order was charged and shipped once, to the cent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg

CUSTOMERS: Final = ("ann", "bob", "cy", "dee", "eve")
SHOP: Final = "shop"
BEGUN_WITH: Final = 100_000_000
LEASE_S: Final = 2

TABLES: Final = """
create table accounts (name text primary key, cents int8 not null);
create table orders (id text primary key, customer text not null, cents int8 not null);
create table ledger (number int8 generated always as identity primary key, order_id text not null, cents int8 not null);
create table shipments (number int8 generated always as identity primary key, order_id text not null);
"""
"""No constraint keeps an order from being charged or shipped twice: a double would be there to see."""


def open_shop(connection: psycopg.Connection[Any]) -> None:
    connection.execute(TABLES.encode())
    for name in (*CUSTOMERS, SHOP):
        connection.execute("insert into accounts values (%s, %s)", [name, BEGUN_WITH if name != SHOP else 0])


def wrong(connection: psycopg.Connection[Any]) -> Iterator[str]:
    """What is wrong with the money and the goods."""
    for what in ("ledger", "shipments"):
        rows = connection.execute(
            f"select id, count(order_id) from orders left join {what} on order_id = id "
            "group by id having count(order_id) <> 1".encode()
        ).fetchall()
        yield from (f"order {order} is {times} times in {what}" for order, times in rows)
        rows = connection.execute(
            f"select order_id from {what} where order_id not in (select id from orders)".encode()
        ).fetchall()
        yield from (f"{what} has {order}, which was rolled back" for (order,) in rows)
    expected = dict.fromkeys(CUSTOMERS, BEGUN_WITH) | {SHOP: 0}
    for customer, cents in connection.execute("select customer, cents from orders").fetchall():
        expected[customer] -= cents
        expected[SHOP] += cents
    for name, cents in connection.execute("select name, cents from accounts").fetchall():
        if cents != expected[name]:
            yield f"{name} has {cents} cents, and should have {expected[name]}"


def orders(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("select count(*) from orders").fetchone()
    assert row is not None
    return int(row[0])
