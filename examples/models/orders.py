"""Pydantic models as arguments and results: checked where the job is enqueued, instances in the handler and the caller.

Types are those of the functions: a checker knows what `bill.enqueue` takes and what `handle.result()` returns.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Generic, Literal, TypeVar, assert_type

from pydantic import BaseModel, ConfigDict, Field

from leasemill import App, JobHandle

app = App()
T = TypeVar("T")


class Line(BaseModel):
    sku: str
    price: Decimal
    count: int = Field(default=1, gt=0)


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    customer: str
    placed_at: datetime
    lines: list[Line]

    @property
    def total(self) -> Decimal:
        return sum((line.price * line.count for line in self.lines), Decimal(0))


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str


class Transfer(BaseModel):
    kind: Literal["transfer"] = "transfer"
    iban: str


Payment = Annotated[Card | Transfer, Field(discriminator="kind")]


class Receipt(BaseModel, Generic[T]):
    total: Decimal
    paid_by: T


def customer_of(order: Order) -> str:
    return order.customer


@app.job(lane=customer_of)
def bill(order: Order, payment: Payment, note: str | None = None) -> Receipt[Payment]:
    return Receipt[Payment](total=order.total, paid_by=payment)


@app.job
async def totals(orders: dict[str, Order]) -> list[Decimal]:
    return [order.total for order in orders.values()]


def typed(order: Order) -> Decimal:
    """What a type checker knows, written down."""
    handle = bill.enqueue(order, Card(number="4111"))
    assert_type(handle, JobHandle[Receipt[Card | Transfer]])
    receipt = handle.result(timeout=10)
    assert_type(receipt.paid_by, Card | Transfer)
    assert_type(totals.enqueue({"first": order}).result(timeout=10), list[Decimal])
    return receipt.total
