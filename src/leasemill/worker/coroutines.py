"""Tasks of a worker, and coroutines that are carried on inside another one's task, without a task of their own.

`asyncio` finds one task for all of them, and a cancellation of it reaches the one that is being carried on. What must
never happen here: a step of a coroutine in another context than its others.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def new_task(called: Coroutine[Any, Any, ResultT], context: contextvars.Context | None = None) -> asyncio.Task[ResultT]:
    """A task that begins when this turn of the loop is over. One of an eager task factory would begin at once, before
    its caller knows it, and what it ends would begin others inside it."""
    return asyncio.Task(called, loop=asyncio.get_running_loop(), context=context)


@coroutine
def in_context(context: contextvars.Context, called: Coroutine[Any, Any, ResultT]) -> Generator[Any, Any, ResultT]:
    """Await it, with every step of it in this context."""
    step, value = called.send, None
    while True:
        try:
            waits_for = context.run(step, value)
        except StopIteration as end:
            result: ResultT = end.value
            return result
        try:
            step, value = called.send, (yield waits_for)
        except BaseException as error:  # noqa: BLE001  (it is for the coroutine to handle)
            step, value = called.throw, error


@coroutine
def go_on(
    called: Coroutine[Any, Any, ResultT], waits_for: Any, context: contextvars.Context | None = None
) -> Generator[Any, Any, ResultT]:
    """Await the rest of a coroutine whose first step has been taken, in this context: that one waits for this."""
    step, value = called.send, None
    while True:
        try:
            step, value = called.send, (yield waits_for)
        except BaseException as error:  # noqa: BLE001  (it is for the coroutine to handle)
            step, value = called.throw, error
        try:
            waits_for = step(value) if context is None else context.run(step, value)
        except StopIteration as end:
            result: ResultT = end.value
            return result
