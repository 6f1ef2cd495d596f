"""Admission: jobs that have arrived take their places in their lanes."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from psycopg.errors import LockNotAvailable

from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.arrays import int8
from leasemill.store.postgres.wire.connections import Connection

ADMITTED_AT_ONCE: Final = 2_000
LONGEST_WAIT_S: Final = 1.0
"""For an admission that is under way."""


def admit(database: Database, connection: Connection) -> bool:
    """Arrived jobs join their lanes, in the transaction that is open. Lanes go by arrival.

    Those of a lane that somebody else has locked are left to the next admission. False: another admission is under way.
    """
    given = {"admission_key": int8(database.admission_key), "limit": int8(ADMITTED_AT_ONCE)}
    is_open, count = database.one(connection, "arrive", given)
    if is_open and count:
        database.positions.lower(database.all(connection, "admit", given))
    return bool(is_open)


def admit_now(database: Database, connection: Connection) -> bool:
    """Admit in a transaction of its own. False: another admission is under way."""
    with connection.transaction():
        return admit(database, connection)


def admit_or_wait(database: Database, connection: Connection) -> None:
    """What had arrived is admitted when this returns, by this or another admission, unless that takes long."""
    if admit_now(database, connection):
        return
    with suppress(LockNotAvailable), connection.transaction():
        connection.execute("select set_config('lock_timeout', %s, true)", [f"{LONGEST_WAIT_S * 1000:.0f}"])
        lock_admission(database, connection)


def lock_admission(database: Database, connection: Connection) -> None:
    """Wait until no other admission is under way; none begins before the transaction that is open ends."""
    connection.execute("select pg_advisory_xact_lock(%s)", [int8(database.admission_key)])
