"""Orders move on step by step: in order for each customer, customers beside each other.

Three kinds of jobs. Each step commits, and the next step is a follow-up of that commit: a worker may die anywhere, and
an order is neither lost nor moved on twice. Run as a program it hands over five orders of three customers, again and
again if you like: an order is known by its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from leasemill import App, Context, Fail, Retry

app = App()

STOCK = {"book": Decimal("12.50"), "lamp": Decimal("40.00"), "pen": Decimal("1.20")}


@dataclass
class Order:
    number: int
    customer: str
    articles: list[str]


def customer_of(order: Order) -> str:
    return order.customer


@app.job(queue="orders", lane=customer_of)
async def price(ctx: Context, order: Order) -> Decimal:
    """An article nobody sells ends the order; the customer's next order goes on."""
    unknown = sorted(set(order.articles) - STOCK.keys())
    if unknown:
        raise Fail(f"nobody sells {unknown[0]!r}")
    total = sum((STOCK[article] for article in order.articles), Decimal(0))
    async with ctx.commit() as tx:
        tx.enqueue(charge, order, total)
        tx.set_result(total)
    return total


@app.job(queue="payments", lane=customer_of, retry=Retry(max=8, base=0.2, cap=30), lease="external")
async def charge(ctx: Context, order: Order, total: Decimal) -> str:
    """A customer whose payment is being retried holds up his own orders only."""
    payment = await pay(order.customer, total, key=ctx.idempotency_key)
    async with ctx.commit() as tx:
        tx.enqueue(ship, order, payment)
        tx.set_result(payment)
    return payment


@app.job(queue="parcels", lane=customer_of)
def ship(ctx: Context, order: Order, payment: str) -> str:
    """A plain function: it runs in a thread."""
    ctx.logger.info("order %d leaves", order.number)
    return f"order {order.number} for {order.customer}, paid by {payment}"


PAID: dict[str, str] = {}


async def pay(customer: str, total: Decimal, *, key: str) -> str:
    """Stands for a payment service: the same key again gives the same payment."""
    return PAID.setdefault(key, f"payment {len(PAID) + 1} of {total} by {customer}")


ORDERS = [
    Order(1, "ann", ["book", "lamp", "pen"]),
    Order(2, "bob", ["moon"]),
    Order(3, "cy", ["pen"]),
    Order(4, "ann", ["book"]),
    Order(5, "bob", ["lamp"]),
]

if __name__ == "__main__":
    handles = app.enqueue_many(price.options(job_id=f"order-{order.number}").call(order) for order in ORDERS)
    known = sum(handle.is_duplicate for handle in handles)
    print(f"{len(handles) - known} orders placed, {known} were known")
