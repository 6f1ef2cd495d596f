"""Which workers are running: rows of an unlogged table, soft state, safe to lose. And what was asked of them."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, Order, WorkerOrder
from leasemill.store.postgres.context import read
from leasemill.store.postgres.driver.thread import ThreadDriver
from leasemill.store.postgres.steps import Row, Steps, rows
from leasemill.store.presence import Present, instance_of


class PostgresPresence:
    """A row for each worker. Called from threads, never from an event loop."""

    def __init__(self, threads: ThreadDriver) -> None:
        self._threads = threads

    def publish(self, worker_id: str, record: bytes) -> WorkerOrder | None:
        given = {"id": worker_id, "record": record, "instance": instance_of(record)}
        return _order_of(self._threads.run(read(rows, "worker_publish", given)))

    def records(self) -> list[Present]:
        found = self._threads.run(read(rows, "worker_records", {}))
        return [Present(worker_id, record, age_us / SECOND) for worker_id, record, age_us in found]

    def remove(self, worker_id: str, instance: str | None = None) -> bool:
        given: dict[str, str | bytes | None] = {"id": worker_id, "record": None}
        if instance is not None:
            found = [one.content for one in self.records() if one.worker_id == worker_id]
            if not found or instance_of(found[0]) != instance:
                return False
            given["record"] = found[0]
        return bool(self._threads.run(read(rows, "worker_remove", given)))


def get_order(query: c.GetOrder) -> Steps[WorkerOrder | None]:
    return _order_of((yield from rows("order", {"instance": query.instance})))


def _order_of(found: list[Row]) -> WorkerOrder | None:
    """Return the order in the rows of a statement that looks for one."""
    if not found:
        return None
    ((instance, asked, at, by, reason),) = found
    return WorkerOrder(instance, Order(asked), at, by, reason)
