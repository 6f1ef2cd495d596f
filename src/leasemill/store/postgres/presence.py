"""Which workers are running: rows of an unlogged table. Soft state, safe to lose."""

from __future__ import annotations

from leasemill.kernel.model import SECOND
from leasemill.kernel.orders import WorkerOrder
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.orders import order_of
from leasemill.store.postgres.wire.connections import Connections
from leasemill.store.presence import Present, instance_of


class PostgresPresence:
    """A row for each worker. Called from threads, never from an event loop."""

    def __init__(self, pool: Connections, database: Database) -> None:
        self._pool = pool
        self._database = database

    def publish(self, worker_id: str, record: bytes) -> WorkerOrder | None:
        given = {"id": worker_id, "record": record, "instance": instance_of(record)}
        return order_of(self._pool.run(lambda connection: self._database.all(connection, "worker_publish", given)))

    def records(self) -> list[Present]:
        rows = self._pool.run(lambda connection: self._database.all(connection, "worker_records", {}))
        return [Present(worker_id, bytes(record), age_us / SECOND) for worker_id, record, age_us in rows]

    def remove(self, worker_id: str) -> bool:
        return bool(
            self._pool.run(lambda connection: self._database.all(connection, "worker_remove", {"id": worker_id}))
        )
