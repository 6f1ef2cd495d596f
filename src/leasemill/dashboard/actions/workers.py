"""Ask a worker to be quiet, to resume, or to stop; one process, or all of its supervisor's.

The form carries the instances that were running when the question was asked. What must never happen here: an order to
a process that was started after that (O12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from leasemill.dashboard.page_types import Done, Given, InputField, OperatorAction, PageContext, Question
from leasemill.errors import Invalid, NotFound, Refused
from leasemill.kernel.model import Order
from leasemill.operator.wording import counted
from leasemill.operator.workers import named, order_each
from leasemill.store.base import Store
from leasemill.store.worker_records import WorkerRecord, check_takes_orders, found_worker, records

ALL: Final = "all"
INSTANCES: Final = "instances"
HEADINGS: Final = {Order.QUIET: "Quiet worker", Order.RESUME: "Resume worker", Order.STOP: "Stop worker"}
BUTTONS: Final = {Order.QUIET: "Quiet", Order.RESUME: "Resume", Order.STOP: "Stop"}
ASKED: Final = {Order.QUIET: "to be quiet", Order.RESUME: "to resume", Order.STOP: "to stop"}


def _asking(order: Order) -> Callable[[PageContext], Question]:
    def ask(context: PageContext) -> Question:
        record, age_s = found_worker(context.store.presence, context.asked("worker") or "")
        heading = f"{HEADINGS[order]} {record.worker}"
        try:
            check_takes_orders(record, age_s)
        except NotFound:
            raise
        except Refused as error:
            return Question(heading, [str(error)], BUTTONS[order], is_possible=False)
        sentences = [_effect(order, record), "It obeys with its next heartbeat, within 2 seconds."]
        instances = msgspec.json.encode(_instances(context.store, record)).decode()
        fields = [InputField(INSTANCES, "", "hidden", instances)]
        if record.supervisor and record.processes > 1:
            processes = counted(record.processes, "process", "processes")
            fields.append(InputField(ALL, f"All {processes} of {record.supervisor}", "checkbox"))
        return Question(heading, sentences, BUTTONS[order], fields)

    return ask


def _effect(order: Order, record: WorkerRecord) -> str:
    running = counted(len(record.running), "running job")
    match order:
        case Order.QUIET:
            return f"It claims no more jobs until it is resumed. Its {running} may end, and the process stays up."
        case Order.RESUME if record.is_quiet and record.order is not None:
            return f"It claims jobs again. {record.order.by} asked it to be quiet: {record.order.reason}"
        case Order.RESUME:
            return "It is not quiet: it claims jobs."
        case Order.STOP:
            restarted = " Its supervisor does not start it again." if record.supervisor else ""
            return (
                f"It stops as after SIGTERM, which cannot be taken back: its {running} may end within its shutdown "
                f"timeout, the rest is given back.{restarted}"
            )


def _running(order: Order) -> Callable[[PageContext, Given], Done]:
    def run(context: PageContext, given: Given) -> Done:
        record, _ = found_worker(context.store.presence, context.asked("worker") or "")
        known = _given_instances(given)
        if known.get(record.worker) != record.instance:
            raise Refused(f"worker {record.worker!r} was started again since you were asked: look at it again")
        asked = known if given.text(ALL) else {record.worker: record.instance}
        outcomes = order_each(context.store, asked, order, by=given.by, reason=given.reason)
        ordered = [one.worker for one in outcomes if one.refused is None]
        refused = [one.refused for one in outcomes if one.refused is not None]
        if not ordered:
            raise refused[0]
        who = f"Worker {ordered[0]} was" if len(ordered) == 1 else f"{counted(len(ordered), 'worker')} were"
        left = f" {counted(len(refused), 'worker')} not: {'; '.join(map(str, refused))}." if refused else ""
        return Done(f"{who} asked {ASKED[order]}.{left}")

    return run


def _instances(store: Store, record: WorkerRecord) -> dict[str, str]:
    """Return the instances of this worker and of those that its supervisor runs, by worker."""
    found = records(store.presence)
    ids = {record.worker, *(named(found, record.supervisor) if record.supervisor else ())}
    return {one.worker: one.instance for one, _ in found if one.worker in ids}


def _given_instances(given: Given) -> dict[str, str]:
    try:
        return msgspec.json.decode(given.text(INSTANCES), type=dict[str, str])
    except msgspec.MsgspecError:
        raise Invalid("the form does not name the process that is meant: look at the worker again") from None


ACTIONS = tuple(
    OperatorAction(f"{order.value}-worker", _asking(order), _running(order), is_dangerous=order is Order.STOP)
    for order in Order
)
