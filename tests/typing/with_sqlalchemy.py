"""A program with SQLAlchemy's sessions, as a user's type checker sees it."""

from __future__ import annotations

from typing import assert_type

from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from leasemill import App, Context, JobHandle

app = App("postgresql:///shop")
Sessions = sessionmaker(create_engine("postgresql+psycopg:///shop"))
async_engine = create_async_engine("postgresql+asyncpg:///shop")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int]


@app.job
def receipt(order_id: int) -> str:
    return f"receipt for order {order_id}"


@app.job
def charge(ctx: Context, order_id: int) -> int:
    with Sessions() as session, ctx.commit(session) as tx:
        order = session.get_one(Order, order_id)
        order.cents += 30
        assert_type(tx.enqueue(receipt, order_id), JobHandle[str])
        tx.set_result(order.cents)
    return order.cents


@app.job
async def refund(ctx: Context, order_id: int) -> None:
    async with AsyncSession(async_engine) as session, ctx.commit(session) as tx:
        order = await session.get_one(Order, order_id)
        order.cents = 0
        assert_type(tx.enqueue(charge, order_id), JobHandle[int])


def place(session: Session, scoped: scoped_session[Session], connection: Connection) -> None:
    assert_type(charge.using(session).enqueue(1), JobHandle[int])
    assert_type(charge.using(scoped).options(priority=3).enqueue(order_id=1), JobHandle[int])
    assert_type(charge.using(connection).enqueue_many([charge.call(1)]), list[JobHandle[int]])
    charge.using(session).enqueue("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    charge.using(session).enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def place_async(
    session: AsyncSession, scoped: async_scoped_session[AsyncSession], connection: AsyncConnection
) -> None:
    assert_type(await charge.using(session).aenqueue(1), JobHandle[int])
    assert_type(await charge.using(scoped).aenqueue(1), JobHandle[int])
    assert_type(await charge.using(connection).aenqueue_many([charge.call(1)]), list[JobHandle[int]])
