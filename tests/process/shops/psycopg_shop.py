"""The shop with `ctx.commit()` and psycopg."""

from __future__ import annotations

from typing import Any

import psycopg

from leasemill import App, Context
from leasemill.store.postgres.driver.url import parse_url
from tests.process.shops.money import SHOP
from tests.process.shops.order import OPTIONS, URL, Order, fall_asleep

app = App(URL)


@app.job(**OPTIONS)
def charge(ctx: Context, order: Order) -> int:
    with ctx.commit() as tx:
        tx.execute("update accounts set cents = cents - %s where name = %s", [order.cents, order.customer])
        tx.execute("update accounts set cents = cents + %s where name = %s", [order.cents, SHOP])
        tx.execute("insert into ledger (order_id, cents) values (%s, %s)", [order.id, order.cents])
        tx.enqueue(ship, order.id)
        tx.set_result(order.cents)
        fall_asleep(order, ctx.attempt)
    return order.cents


@app.job(**OPTIONS)
async def ship(ctx: Context, order_id: str) -> None:
    async with ctx.commit() as tx:
        await tx.execute("insert into shipments (order_id) values (%s)", [order_id])


def place(orders: list[Order]) -> None:
    connection: psycopg.Connection[Any]
    with psycopg.connect(parse_url(URL)[0]) as connection:
        for order in orders:
            connection.execute("insert into orders values (%s, %s, %s)", [order.id, order.customer, order.cents])
            charge.using(connection).enqueue(order)
            if order.is_rolled_back:
                connection.rollback()
            else:
                connection.commit()
