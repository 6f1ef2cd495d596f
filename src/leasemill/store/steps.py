"""One sequence of steps for sync and for async code.

A generator yields what is to be done, and is resumed with the result, or with the error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def drive(steps: Generator[Any, Any, ResultT], carry_out: Callable[[Any], Any], step: Any = None) -> ResultT:
    """Carry out the steps and return what they return. `step` is the one they wait for, if they have begun."""
    try:
        if step is None:
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
