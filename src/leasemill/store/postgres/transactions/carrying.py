"""Steps on a connection or session of the user's, whichever it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from leasemill.store.postgres.database import Database
from leasemill.store.postgres.steps import Step
from leasemill.store.postgres.transactions.carriers import AsyncCarrier, Carrier
from leasemill.store.steps import adrive, drive

ResultT = TypeVar("ResultT")


class SessionStep(Enum):
    """What is done on a session beside our statements."""

    BEGIN = "begin"
    FLUSH = "flush"
    COMMIT = "commit"
    ROLL_BACK = "roll_back"


JoinedSteps: TypeAlias = Generator[SessionStep | Step, Any, ResultT]


def carry(database: Database, carrier: Carrier, steps: Generator[Any, Any, ResultT]) -> ResultT:
    def carry_out(step: Any) -> Any:
        match step:
            case SessionStep():
                return getattr(carrier, step.value)()
            case (str(name), given):
                return carrier.rows(*database.statement(name, given))
            case _:
                return step()

    return drive(steps, carry_out)


async def acarry(
    database: Database,
    carrier: AsyncCarrier,
    steps: Generator[Any, Any, ResultT],
    off_loop: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> ResultT:
    """`carry` in async code."""

    async def carry_out(step: Any) -> Any:
        match step:
            case SessionStep():
                return await getattr(carrier, step.value)()
            case (str(name), given):
                return await carrier.rows(*database.statement(name, given))
            case _:
                return await off_loop(step)

    return await adrive(steps, carry_out)
