"""Orders to workers: one at a time, decided by the kernel on the latest order to that instance."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.machine import run
from leasemill.kernel.model import ORDERS_KEPT, WorkerOrder
from leasemill.kernel.state import State
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database, advisory_key
from leasemill.store.postgres.exact.save import save_actions
from leasemill.store.postgres.presence import get_order
from leasemill.store.postgres.wire.arrays import int8
from leasemill.store.postgres.wire.connections import Connection


def order_worker(calls: Calls, command: c.OrderWorker) -> WorkerOrder | None:
    database = calls.database

    def work(connection: Connection) -> WorkerOrder | None:
        with connection.transaction():
            return _ordered(database, connection, command)

    return calls.connections.run(work)


def _ordered(database: Database, connection: Connection, command: c.OrderWorker) -> WorkerOrder | None:
    key = advisory_key(f"leasemill orders {database.statements.schema}")
    (now,) = database.one(connection, "order_lock", {"key": int8(key)})
    state, latest = State(), get_order(database, connection, c.GetOrder(command.instance))
    if latest is not None:
        state.orders[latest.instance] = latest
    events, order = run(state, command, now)
    if events and order is not None:
        _save(database, connection, order)
        save_actions(database, connection, state)
    return order


def _save(database: Database, connection: Connection, order: WorkerOrder) -> None:
    given = {
        "instance": order.instance,
        "asked": order.order.value,
        "at": int8(order.at),
        "by": order.by,
        "reason": order.reason,
    }
    database.do(connection, "order_save", given)
    database.do(connection, "orders_trim", {"most": int8(ORDERS_KEPT)})
