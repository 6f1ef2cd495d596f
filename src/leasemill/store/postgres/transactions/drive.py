"""The drivers of a user's transaction: steps that run on a connection or session of the user's, or on one for a block.

They never repeat anything: the transaction is the user's. A step is a message of ours, whose statements are sent one by
one; something done on the session itself; or a call on the store's own connections, which an event loop does not wait
for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import psycopg

from leasemill.store.postgres.driver import simple_query
from leasemill.store.postgres.statements import Statements
from leasemill.store.postgres.transactions.adapters import AsyncUserConnection, UserConnection
from leasemill.store.postgres.transactions.own_cursors import arows, rows
from leasemill.store.steps import adrive, drive

ResultT = TypeVar("ResultT")
OffLoop: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]


class SessionStep(Enum):
    """The operations on a session beside our statements."""

    BEGIN = "begin"
    FLUSH = "flush"
    COMMIT = "commit"
    ROLL_BACK = "roll_back"


UserSteps: TypeAlias = Generator[Any, Any, ResultT]
"""Steps of messages, of `SessionStep`, of bytes (one message of the simple protocol) and of calls."""


def run_in_session(statements: Statements, session: UserConnection, steps: UserSteps[ResultT]) -> ResultT:
    def carry_out(step: Any) -> Any:
        match step:
            case SessionStep():
                return getattr(session, step.value)()
            case tuple():
                return [session.rows(*statements.complete(call)) for call in step]
            case _:
                return step()

    return drive(steps, carry_out)


async def arun_in_session(
    statements: Statements, session: AsyncUserConnection, steps: UserSteps[ResultT], off_loop: OffLoop
) -> ResultT:
    """`run_in_session` in async code."""

    async def carry_out(step: Any) -> Any:
        match step:
            case SessionStep():
                return await getattr(session, step.value)()
            case tuple():
                return [await session.rows(*statements.complete(call)) for call in step]
            case _:
                return await off_loop(step)

    return await adrive(steps, carry_out)


def run_in_block(statements: Statements, connection: psycopg.Connection[Any], steps: UserSteps[ResultT]) -> ResultT:
    def carry_out(step: Any) -> Any:
        match step:
            case bytes():
                return simple_query.send(connection, step)
            case tuple():
                return [rows(connection, *statements.complete(call)) for call in step]
            case _:
                return step()

    return drive(steps, carry_out)


async def arun_in_block(
    statements: Statements, connection: psycopg.AsyncConnection[Any], steps: UserSteps[ResultT], off_loop: OffLoop
) -> ResultT:
    """`run_in_block` in async code."""

    async def carry_out(step: Any) -> Any:
        match step:
            case bytes():
                return await simple_query.asend(connection, step)
            case tuple():
                return [await arows(connection, *statements.complete(call)) for call in step]
            case _:
                return await off_loop(step)

    return await adrive(steps, carry_out)
