"""The shop's jobs: found by autodiscovery."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import connection
from django.db.models import F

from leasemill import Context, Retry
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


@app.job(queue="shipping")
async def notify_async(order_id: int) -> None:
    await Order.objects.filter(pk=order_id).aupdate(state="notified")


@app.job(queue="shipping", retry=1)
def fails_late(ctx: Context, order_id: int) -> None:
    with ctx.commit():
        Order.objects.filter(pk=order_id).update(state="half")
        raise RuntimeError("late")


SESSIONS: list[int] = []
"""The sessions of PostgreSQL that handlers had."""


@app.job(queue="looking")
def look() -> None:
    SESSIONS.append(session())


@app.job(queue="looking")
async def look_async() -> None:
    SESSIONS.append(await sync_to_async(session)())


@app.job(queue="looking", retry=Retry(max=1, base=0, cap=0))
def breaks(ctx: Context) -> None:
    if ctx.attempt == 1:
        with connection.cursor() as cursor:
            cursor.execute("select pg_terminate_backend(pg_backend_pid())")
    SESSIONS.append(session())


def session() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])
