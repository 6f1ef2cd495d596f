"""A shop: FastAPI, SQLAlchemy with asyncpg, and jobs in the same PostgreSQL database.

`POST /orders` writes an order and enqueues its charge in one transaction: both are there, or neither. The charge writes
through a session of its own in `ctx.commit(session)`: the order is marked, its receipt enqueued and the job done in one
transaction, once, also if the worker dies on the way.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import uuid4

from fastapi import Depends, FastAPI, Header, HTTPException, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from leasemill import App, Context
from leasemill.contrib.starlette import health, lifespan

DATABASE_URL = os.environ.get("DATABASE_URL", "postgresql://postgres@127.0.0.1/postgres")

jobs = App(f"{DATABASE_URL}?auto_migrate=true")  # in production: `leasemill db migrate` before a deployment
engine = create_async_engine(DATABASE_URL.replace("postgresql://", "postgresql+asyncpg://"))
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase): ...


class OrderRow(Base):
    __tablename__ = "shop_orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]
    paid_with: Mapped[str | None] = mapped_column(default=None)


class NewOrder(BaseModel):
    customer: str
    cents: int = Field(gt=0)


class Order(NewOrder):
    id: str
    paid_with: str | None = None


def customer_of(order: Order) -> str:
    return order.customer


@jobs.job(lane=customer_of)
async def charge(ctx: Context, order: Order) -> Order:
    """One at a time for each customer. A payment may be asked for twice; its key is the same, so it is made once."""
    payment = await pay(order, key=ctx.idempotency_key)
    async with sessions() as session, ctx.commit(session) as tx:
        row = await session.get_one(OrderRow, order.id)
        row.paid_with = payment
        paid = order.model_copy(update={"paid_with": payment})
        tx.enqueue(send_receipt, paid)
        tx.set_result(paid)
    return paid


@jobs.job
async def send_receipt(order: Order) -> str:
    return f"{order.customer} paid {order.cents} with {order.paid_with}"


async def pay(order: Order, *, key: str) -> str:
    """Stands for a payment service that knows idempotency keys."""
    return f"payment-{key}"


async def session() -> AsyncIterator[AsyncSession]:
    async with sessions() as opened:
        yield opened


Session = Annotated[AsyncSession, Depends(session)]


@asynccontextmanager
async def database(_web: FastAPI) -> AsyncGenerator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


web = FastAPI(lifespan=lifespan(jobs, worker={"concurrency": 5, "shutdown_timeout": 10}, inside=database))


@web.post("/orders", status_code=202)
async def place(
    asked: NewOrder, session: Session, idempotency_key: Annotated[str | None, Header(max_length=100)] = None
) -> Order:
    """The order and its job are committed when this responds."""
    order = Order(id=idempotency_key or str(uuid4()), customer=asked.customer, cents=asked.cents)
    try:
        async with session.begin():  # here, not in the dependency: what follows a `yield` runs after the response
            session.add(OrderRow(id=order.id, customer=order.customer, cents=order.cents))
            await session.flush()  # a second request with the same key ends here
            await charge.using(session).options(job_id=f"charge-{order.id}").aenqueue(order)
    except IntegrityError:
        row = await session.get_one(OrderRow, order.id)
        if (row.customer, row.cents) != (asked.customer, asked.cents):
            raise HTTPException(409, "this Idempotency-Key was used for another order") from None
        return _order(row)
    return order


@web.get("/orders/{order_id}")
async def read(order_id: str, session: Session) -> Order:
    row = await session.get(OrderRow, order_id)
    if row is None:
        raise HTTPException(404, "no such order")
    return _order(row)


@web.get("/healthz")
def healthz(response: Response) -> str:
    found = health(jobs)
    response.status_code = 200 if found.is_ok else 503
    return found.reason


def _order(row: OrderRow) -> Order:
    return Order(id=row.id, customer=row.customer, cents=row.cents, paid_with=row.paid_with)
