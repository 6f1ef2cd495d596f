"""The shop with an async SQLAlchemy session, on asyncpg."""

from __future__ import annotations

import asyncio

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from leasemill import App, Context
from tests.process.shops.models import Account, Ledger, Placed, Shipment, sqlalchemy_url
from tests.process.shops.money import SHOP
from tests.process.shops.order import OPTIONS, URL, Order, fall_asleep

app = App(URL)
engine = create_async_engine(sqlalchemy_url("asyncpg"), pool_size=10)


@app.job(**OPTIONS)
async def charge(ctx: Context, order: Order) -> int:
    async with AsyncSession(engine) as session, ctx.commit(session) as tx:
        for name, cents in ((order.customer, -order.cents), (SHOP, order.cents)):
            await session.execute(update(Account).where(Account.name == name).values(cents=Account.cents + cents))
        session.add(Ledger(order_id=order.id, cents=order.cents))
        tx.enqueue(ship, order.id)
        tx.set_result(order.cents)
        fall_asleep(order, ctx.attempt)
    return order.cents


@app.job(**OPTIONS)
async def ship(ctx: Context, order_id: str) -> None:
    async with AsyncSession(engine) as session, ctx.commit(session):
        session.add(Shipment(order_id=order_id))


def place(orders: list[Order]) -> None:
    asyncio.run(_place(orders))


async def _place(orders: list[Order]) -> None:
    async with AsyncSession(engine) as session:
        for order in orders:
            session.add(Placed(id=order.id, customer=order.customer, cents=order.cents))
            await charge.using(session).aenqueue(order)
            if order.is_rolled_back:
                await session.rollback()
            else:
                await session.commit()
    await engine.dispose()  # its connections belong to this event loop
