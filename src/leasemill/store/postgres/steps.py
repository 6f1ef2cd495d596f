"""One sequence of steps for sync and for async code.

A generator yields what is to be done, and is resumed with the result, or with the error: a message or one of our
statements on the user's connection, or a call of the store's own, which an event loop does not wait for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.rows import tuple_row

from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.cursors import AsyncPlainCursor, asend, send

ResultT = TypeVar("ResultT")
Step: TypeAlias = bytes | tuple[str, Mapping[str, Any]] | Callable[[], Any]
Steps: TypeAlias = Generator[Step, Any, ResultT]


def drive(steps: Generator[Any, Any, ResultT], carry_out: Callable[[Any], Any]) -> ResultT:
    try:
        step = next(steps)
        while True:
            try:
                result = carry_out(step)
            except BaseException as error:  # noqa: BLE001  (it is for the steps to handle)
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        returned: ResultT = end.value
        return returned


async def adrive(steps: Generator[Any, Any, ResultT], carry_out: Callable[[Any], Awaitable[Any]]) -> ResultT:
    """`drive` in async code."""
    try:
        step = next(steps)
        while True:
            try:
                result = await carry_out(step)
            except BaseException as error:  # noqa: BLE001  (it is for the steps to handle)
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        returned: ResultT = end.value
        return returned


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
