"""The shop with Django's ORM: a module that configures Django by itself, so that it needs a process of its own."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

from leasemill.store.postgres.driver.url import parse_url
from tests.process.shops.order import OPTIONS, URL, Order, fall_asleep

_given = conninfo_to_dict(parse_url(URL)[0])
settings.configure(
    INSTALLED_APPS=["leasemill.contrib.django"],
    USE_TZ=True,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": _given["dbname"],
            "USER": _given["user"],
            "HOST": _given["host"],
            "PORT": _given["port"],
            "CONN_MAX_AGE": None,
        }
    },
)
django.setup()

from django.db import models, transaction  # noqa: E402  (the settings come first)
from django.db.models import F  # noqa: E402

from leasemill import Context  # noqa: E402
from leasemill.contrib.django import app  # noqa: E402
from tests.process.shops.money import SHOP  # noqa: E402

__all__ = ["app", "place"]


class Account(models.Model):
    name: Any = models.TextField(primary_key=True)
    cents: Any = models.BigIntegerField()

    class Meta:
        app_label, db_table, managed = "shop", "accounts", False


class Placed(models.Model):
    id: Any = models.TextField(primary_key=True)
    customer: Any = models.TextField()
    cents: Any = models.BigIntegerField()

    class Meta:
        app_label, db_table, managed = "shop", "orders", False


class Ledger(models.Model):
    number: Any = models.BigAutoField(primary_key=True)
    order_id: Any = models.TextField()
    cents: Any = models.BigIntegerField()

    class Meta:
        app_label, db_table, managed = "shop", "ledger", False


class Shipment(models.Model):
    number: Any = models.BigAutoField(primary_key=True)
    order_id: Any = models.TextField()

    class Meta:
        app_label, db_table, managed = "shop", "shipments", False


@app.job(**OPTIONS)
def charge(ctx: Context, order: Order) -> int:
    with ctx.commit() as tx:
        for name, cents in ((order.customer, -order.cents), (SHOP, order.cents)):
            Account.objects.filter(name=name).update(cents=F("cents") + cents)
        Ledger.objects.create(order_id=order.id, cents=order.cents)
        tx.enqueue(ship, order.id)
        tx.set_result(order.cents)
        fall_asleep(order, ctx.attempt)
    return order.cents


@app.job(**OPTIONS)
def ship(ctx: Context, order_id: str) -> None:
    with ctx.commit():
        Shipment.objects.create(order_id=order_id)


def place(orders: list[Order]) -> None:
    for order in orders:
        with transaction.atomic():
            Placed.objects.create(id=order.id, customer=order.customer, cents=order.cents)
            charge.enqueue(order)
            transaction.set_rollback(order.is_rolled_back)
