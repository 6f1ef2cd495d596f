"""The shop with a SQLAlchemy session, on psycopg2."""

from __future__ import annotations

from sqlalchemy import create_engine, update
from sqlalchemy.orm import Session

from leasemill import App, Context
from tests.process.shops.models import Account, Ledger, Placed, Shipment, sqlalchemy_url
from tests.process.shops.money import SHOP
from tests.process.shops.order import OPTIONS, URL, Order, fall_asleep

app = App(URL)
engine = create_engine(sqlalchemy_url("psycopg2"), pool_size=10)


@app.job(**OPTIONS)
def charge(ctx: Context, order: Order) -> int:
    with Session(engine) as session, ctx.commit(session) as tx:
        for name, cents in ((order.customer, -order.cents), (SHOP, order.cents)):
            session.execute(update(Account).where(Account.name == name).values(cents=Account.cents + cents))
        session.add(Ledger(order_id=order.id, cents=order.cents))  # is flushed when the block ends
        tx.enqueue(ship, order.id)
        tx.set_result(order.cents)
        fall_asleep(order, ctx.attempt)
    return order.cents


@app.job(**OPTIONS)
def ship(ctx: Context, order_id: str) -> None:
    with Session(engine) as session, ctx.commit(session):
        session.add(Shipment(order_id=order_id))


def place(orders: list[Order]) -> None:
    with Session(engine) as session:
        for order in orders:
            session.add(Placed(id=order.id, customer=order.customer, cents=order.cents))
            charge.using(session).enqueue(order)
            if order.is_rolled_back:
                session.rollback()
            else:
                session.commit()
