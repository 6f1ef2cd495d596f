"""A program whose jobs take models of Pydantic's, as a user's type checker sees it."""

from __future__ import annotations

from typing import assert_type

from pydantic import BaseModel

from leasemill import App, Context, JobHandle

app = App("memory:")


class Line(BaseModel):
    article: str
    count: int


class Order(BaseModel):
    lines: list[Line]


@app.job
async def price(ctx: Context, order: Order) -> Line:
    async with ctx.commit() as tx:
        tx.set_result(order.lines[0])
    return order.lines[0]


assert_type(price.enqueue(Order(lines=[])), JobHandle[Line])
assert_type(price.enqueue(order=Order(lines=[])).result(timeout=1).count, int)
