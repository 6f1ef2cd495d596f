"""Where handlers run: in a thread or on the event loop of the worker's process, or in a process of their own."""

from __future__ import annotations

import asyncio
from typing import Literal, TypeAlias, get_args

from leasemill.errors import Invalid

Executor: TypeAlias = Literal["thread", "process"]
"""thread: in the worker's process, `def` in a thread and `async def` on the event loop. process: in another process,
which the worker can kill."""


def check_executor(executor: object) -> None:
    if executor not in get_args(Executor):
        raise Invalid(f"executor is {executor!r}; write 'thread' or 'process'")


def is_on_event_loop() -> bool:
    """Whether the calling code runs on an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
