"""The shop's jobs: found by autodiscovery."""

from __future__ import annotations

from django.db.models import F

from leasemill import Context
from leasemill.contrib.django import app
from tests.contrib.django.shop.models import Order


@app.job(queue="shipping")
def ship(ctx: Context, order_id: int) -> None:
    with ctx.commit() as tx:
        Order.objects.filter(pk=order_id).update(state="shipped", shipped=F("shipped") + 1)
        tx.enqueue(notify, order_id)


@app.job(queue="shipping")
def counted(ctx: Context, order_id: int) -> int:
    with ctx.commit() as tx:
        cursor = tx.execute("update shop_order set shipped = 7 where id = %s", [order_id])
        tx.set_result(cursor.rowcount)
    return 0


@app.job(queue="shipping")
def notify(order_id: int) -> None:
    Order.objects.filter(pk=order_id).update(state="notified")
