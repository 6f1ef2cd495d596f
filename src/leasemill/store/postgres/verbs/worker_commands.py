"""Commands to workers: one at a time, decided by the kernel on the latest command to that instance."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.machine import run
from leasemill.kernel.model import WORKER_COMMANDS_KEPT, WorkerOrder
from leasemill.kernel.state import State
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.exact.save import save_actions
from leasemill.store.postgres.known import Known, advisory_key
from leasemill.store.postgres.presence import get_order
from leasemill.store.postgres.steps import Steps, Verb, row, rows, transact, transaction


def order_worker(context: VerbContext, command: c.OrderWorker) -> Verb[WorkerOrder | None]:
    return transact(lambda _: transaction(_order(context.known, command)))


def _order(known: Known, command: c.OrderWorker) -> Steps[WorkerOrder | None]:
    (now,) = yield from row("order_lock", {"key": advisory_key(f"leasemill orders {known.schema}")})
    state, latest = State(), (yield from get_order(c.GetOrder(command.instance)))
    if latest is not None:
        state.worker_commands[latest.instance] = latest
    events, order = run(state, command, now)
    if events and order is not None:
        yield from _save(order)
        yield from save_actions(known.schema, state)
    return order


def _save(order: WorkerOrder) -> Steps[None]:
    given = {
        "instance": order.instance,
        "asked": order.order.value,
        "at": order.at,
        "by": order.by,
        "reason": order.reason,
    }
    yield from rows("order_save", given)
    yield from rows("orders_trim", {"most": WORKER_COMMANDS_KEPT})
