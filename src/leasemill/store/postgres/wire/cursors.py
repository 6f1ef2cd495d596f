"""How our statements are sent, on the store's own connections and on users'.

Whatever was set on a connection (row factory, cursor factory, adapters, search path) must not matter: the cursors are
our own, rows are plain tuples in binary form, every name in a statement has its schema. Nothing here begins or ends a
transaction of its own accord.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import adapters
from psycopg.adapt import AdaptersMap
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.types.string import StrBinaryDumper

from leasemill.store.postgres.wire.arrays import register
from leasemill.store.postgres.wire.connections import Row

OURS: Final = AdaptersMap(adapters)
"""psycopg's own adapters and ours, whatever a connection's are."""
OURS.register_dumper(str, StrBinaryDumper)
register(OURS)
ENDS: Final = frozenset({b"COMMIT", b"ROLLBACK"})


class PlainCursor(psycopg.RawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return OURS


class AsyncPlainCursor(psycopg.AsyncRawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return OURS


def send(connection: psycopg.Connection[Any], message: bytes) -> str | None:
    """Several statements at once, in half the time a cursor takes; the first value of the last one, if it gives rows.

    None of them is the user's: they need no parameters, types or rows of psycopg's. An error after COMMIT or ROLLBACK
    is none of the transaction's: then there is no value.
    """
    with connection.lock:
        connection.pgconn.send_query(message)
        return _last_value(connection.wait(execute(connection.pgconn)))


async def asend(connection: psycopg.AsyncConnection[Any], message: bytes) -> str | None:
    """`send` in async code."""
    async with connection.lock:
        connection.pgconn.send_query(message)
        return _last_value(await connection.wait(execute(connection.pgconn)))


def _last_value(results: Sequence[PGresult]) -> str | None:
    found: str | None = None
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            if any(one.command_status in ENDS for one in results):
                return None
            raise error_from_result(result)
        if result.status == ExecStatus.TUPLES_OK:
            value = result.get_value(0, 0) if result.ntuples else None
            found = None if value is None else value.decode()
    return found
