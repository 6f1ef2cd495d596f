"""Orders to workers as they are in their table, read."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.orders import Order, WorkerOrder
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.connections import Connection, Row


def get_order(database: Database, connection: Connection, query: c.GetOrder) -> WorkerOrder | None:
    return order_of(database.all(connection, "order", {"instance": query.instance}))


def order_of(rows: list[Row]) -> WorkerOrder | None:
    """What a statement returned that looks for one order."""
    if not rows:
        return None
    ((instance, asked, at, by, reason),) = rows
    return WorkerOrder(instance, Order(asked), at, by, reason)
