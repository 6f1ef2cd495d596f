"""order_worker: an operator sends a command to a worker. Rule O12.

The kernel does not know which workers there are: the sender has looked at their records.
"""

from __future__ import annotations

from typing import Final

from leasemill.errors import Refused
from leasemill.kernel.bounds import check_text
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import WorkerOrdered
from leasemill.kernel.model import WORKER_COMMANDS_KEPT, Order, Verb, WorkerOrder
from leasemill.kernel.state import State
from leasemill.kernel.transitions.actions import check_operator, record

__all__ = ["OrderWorker"]

VERBS: Final = {
    Order.QUIET: Verb.QUIET_WORKER,
    Order.RESUME: Verb.RESUME_WORKER,
    Order.STOP: Verb.STOP_WORKER,
}


class OrderWorker(Command[WorkerOrder | None], frozen=True):
    """Ask one process of a worker to be quiet, to resume, or to stop; `instance` is in the worker's record. Returns the
    order that holds for it now; null: there is none, and nothing to resume from."""

    worker: str
    instance: str
    order: Order
    by: str
    reason: str


def check(command: OrderWorker) -> None:
    check_text("worker id", command.worker)
    check_text("instance", command.instance)
    check_operator(command)


def decide(state: State, command: OrderWorker, now: int) -> Decision[WorkerOrder | None]:
    latest = state.worker_commands.get(command.instance)
    before = Order.RESUME if latest is None else latest.order
    if command.order is before:
        return (), latest
    if before is Order.STOP:
        raise Refused(f"worker {command.worker!r} was asked to stop, which cannot be undone")
    event = WorkerOrdered(command.worker, command.instance, command.order, now, command.by, command.reason)
    return (event,), _order(event)


def apply(state: State, event: WorkerOrdered) -> None:
    state.worker_commands.pop(event.instance, None)  # the latest comes last
    state.worker_commands[event.instance] = _order(event)
    if len(state.worker_commands) > WORKER_COMMANDS_KEPT:
        del state.worker_commands[next(iter(state.worker_commands))]
    record(state, VERBS[event.order], event.worker, event)


def _order(event: WorkerOrdered) -> WorkerOrder:
    return WorkerOrder(event.instance, event.order, event.at, event.by, event.reason)
