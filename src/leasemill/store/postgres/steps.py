"""Steps on a connection: a message or one of our statements on the user's, or a call of the store's own, which an event
loop does not wait for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.rows import tuple_row

from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.cursors import AsyncPlainCursor, asend, send
from leasemill.store.steps import adrive, drive

ResultT = TypeVar("ResultT")
Step: TypeAlias = bytes | tuple[str, Mapping[str, Any]] | Callable[[], Any]
Steps: TypeAlias = Generator[Step, Any, ResultT]


def follow(database: Database, connection: psycopg.Connection[Any], steps: Steps[ResultT]) -> ResultT:
    def carry_out(step: Step) -> Any:
        match step:
            case bytes():
                return send(connection, step)
            case (str(name), given):
                return database.all(connection, name, given)
            case _:
                return step()

    return drive(steps, carry_out)


async def afollow(
    database: Database,
    connection: psycopg.AsyncConnection[Any],
    steps: Steps[ResultT],
    off_loop: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> ResultT:
    async def carry_out(step: Step) -> Any:
        match step:
            case bytes():
                return await asend(connection, step)
            case (str(name), given):
                async with AsyncPlainCursor(connection, row_factory=tuple_row) as cursor:
                    await cursor.execute(*database.sent(name, given), binary=True)
                    return await cursor.fetchall()
            case _:
                return await off_loop(step)

    return await adrive(steps, carry_out)
