"""Workers as an operator names them, when an order to one is obeyed, and whose clock is far from the store's.

Nothing is decided by the clocks of workers (L8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from leasemill.errors import NotFound, Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, Order, WorkerOrder
from leasemill.operator.wording import counted, did_you_mean, listed, span
from leasemill.store.base import Store
from leasemill.store.worker_records import WorkerRecord, check_instance

Found = Sequence[tuple[WorkerRecord, float]]
"""Records, and how many seconds ago each was published."""


def state_of(record: WorkerRecord, age_s: float) -> str:
    """Return one word for people; the worst state comes first."""
    if record.is_stale(age_s):
        return "no heartbeat"
    if record.is_stopping:
        return "stopping"
    return "quiet" if record.is_quiet else "running"


def named(found: Found, name: str) -> list[str]:
    """The ids of the workers that are meant: by an id, by the name of a supervisor (all its processes), or by the
    beginning of an id that no other has."""
    ids = [record.worker for record, _ in found]
    if name in ids:
        return [name]
    live = [record for record, age_s in found if not record.is_stale(age_s)]
    processes = [record.worker for record in live if name and record.supervisor == name]
    if processes:
        return processes
    begin = [record.worker for record in live if name and record.worker.startswith(name)]
    if len(begin) > 1:
        raise Refused(f"{name!r} matches {counted(len(begin), 'worker')}; use a longer prefix: {listed(begin)}")
    if not begin:
        known = f" Running: {listed([record.worker for record in live])}" if live else " No worker is running"
        raise NotFound(f"there is no worker {name!r}{did_you_mean(name, ids) or '.'}{known}")
    return begin


class OrderOutcome(NamedTuple):
    """The outcome of an order to one worker. `holds`: the order that holds for it now; None: none does, and there was
    nothing to resume from. `refused`: why it was not ordered."""

    worker: str
    holds: WorkerOrder | None = None
    refused: Refused | None = None


def order_each(store: Store, instances: Mapping[str, str], order: Order, *, by: str, reason: str) -> list[OrderOutcome]:
    """Order each of these workers, as the instance that is given with it and no other (O12). One that is refused keeps
    the others from nothing."""
    outcomes: list[OrderOutcome] = []
    for worker, instance in instances.items():
        try:
            check_instance(store.presence, worker, instance)
            holds = store.run(c.OrderWorker(worker, instance, order, by, reason))
        except Refused as error:
            outcomes.append(OrderOutcome(worker, refused=error))
        else:
            outcomes.append(OrderOutcome(worker, holds))
    return outcomes


def is_obeyed(order: Order, found: Found, worker_id: str, instance: str) -> bool:
    """Return True if a worker has done all that it was asked for: a quiet one runs nothing any more, a stopped one is
    gone. Raises NotFound if it never will, because it is gone and was not to stop, or has no heartbeat."""
    record, age_s = next(
        ((one, age_s) for one, age_s in found if one.worker == worker_id and one.instance == instance), (None, 0.0)
    )
    if record is None:
        if order is Order.STOP:
            return True
        raise NotFound(f"worker {worker_id!r} has stopped")
    if record.is_stale(age_s):
        raise NotFound(
            f"worker {worker_id!r} has sent no heartbeat for {age_s:.0f} s: it has died or lost its connection"
        )
    match order:
        case Order.QUIET:
            return record.is_quiet and not record.running and not record.stuck
        case Order.RESUME:
            return not record.is_quiet
        case Order.STOP:
            return False


# Clocks ---------------------------------------------------------------------------------------------------------

APART_S: Final = 60.0
"""The difference from which the clock of a worker's machine is reported. Clocks that a time service keeps differ by far
less."""


def are_apart(ahead_s: float) -> bool:
    return abs(ahead_s) >= APART_S


def clocks_apart(workers: Iterable[WorkerRecord]) -> dict[str, float]:
    """Return, by worker, how many seconds its machine's clock is ahead of the store's (negative: behind), if it is
    reported."""
    return {one.worker: one.clock_ahead_s for one in workers if are_apart(one.clock_ahead_s)}


def ahead_or_behind(ahead_s: float) -> str:
    return f"{span(round(abs(ahead_s) * SECOND))} {'ahead of' if ahead_s > 0 else 'behind'}"
