"""Retention: who forgets jobs that succeeded is alone with it."""

from __future__ import annotations

from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.arrays import int8
from leasemill.store.postgres.wire.connections import Connection


def lock_retention(database: Database, connection: Connection, *, waits: bool = True) -> bool:
    """Who forgets jobs that succeeded is alone with it, so that none is counted twice. False: another is at it."""
    if waits:
        connection.execute("select pg_advisory_xact_lock(%s)", [int8(database.retention_key)])
        return True
    row = connection.execute("select pg_try_advisory_xact_lock(%s)", [int8(database.retention_key)]).fetchone()
    return row is not None and bool(row[0])
