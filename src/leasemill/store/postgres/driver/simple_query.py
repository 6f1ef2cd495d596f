"""Several statements in one message of libpq's simple protocol, on a connection for a user's transaction.

What begins such a transaction and what ends it is sent so: a cursor would take a round trip for each. None of the
statements is the user's; they need no parameters, types or rows of psycopg's.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from leasemill.store.postgres.driver.exchange import error_of

ENDS: Final = frozenset({b"COMMIT", b"ROLLBACK"})


def send(connection: psycopg.Connection[Any], message: bytes) -> str | None:
    """The first value of the last statement that returns rows.

    An error after COMMIT or ROLLBACK is none of the transaction's: then there is no value.
    """
    pgconn, results = connection.pgconn, list[PGresult]()
    try:
        pgconn.send_query(message)
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
        while not _is_complete(pgconn, results):
            poll.modify(pgconn.socket, select.POLLIN | select.POLLOUT if pgconn.flush() else select.POLLIN)
            poll.poll()
            pgconn.consume_input()
    except BaseException:
        pgconn.finish()  # what of the answer is still to come is not known
        raise
    return _last_value(results)


async def asend(connection: psycopg.AsyncConnection[Any], message: bytes) -> str | None:
    """`send` in async code."""
    pgconn, results = connection.pgconn, list[PGresult]()
    try:
        pgconn.send_query(message)
        while not _is_complete(pgconn, results):
            await _ready(pgconn.socket, writes=bool(pgconn.flush()))
            pgconn.consume_input()
    except BaseException:
        pgconn.finish()
        raise
    return _last_value(results)


async def _ready(descriptor: int, *, writes: bool) -> None:
    """Wait until the socket can be read, or written if anything is left to be sent."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, wake)
    if writes:
        loop.add_writer(descriptor, wake)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
        if writes:
            loop.remove_writer(descriptor)


def _is_complete(pgconn: PGconn, results: list[PGresult]) -> bool:
    """Take the results that have arrived; whether they are all."""
    while not pgconn.is_busy():
        result = pgconn.get_result()
        if result is None:
            return True
        results.append(result)
    return False


def _last_value(results: Sequence[PGresult]) -> str | None:
    found: str | None = None
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            if any(one.command_status in ENDS for one in results):
                return None
            raise error_of(result)
        if result.status == ExecStatus.TUPLES_OK:
            value = result.get_value(0, 0) if result.ntuples else None
            found = None if value is None else value.decode()
    return found
