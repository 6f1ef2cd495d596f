"""A program with a connection of Django's, as a user's type checker sees it."""

from __future__ import annotations

from typing import assert_type

from django.db import connection, transaction

from leasemill import App, Context, JobHandle

app = App("postgresql:///shop")


@app.job
def charge(ctx: Context, order_id: int) -> int:
    with ctx.commit(connection) as tx:
        with connection.cursor() as cursor:
            cursor.execute("update orders set is_paid = true where id = %s", [order_id])
        assert_type(tx.enqueue(charge, order_id), JobHandle[int])
    return order_id


def place() -> None:
    with transaction.atomic():
        assert_type(charge.using(connection).enqueue(1), JobHandle[int])
