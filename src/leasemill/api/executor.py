"""Where handlers run: in the worker's process, or in processes of their own."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from leasemill.errors import Invalid

Executor: TypeAlias = Literal["thread", "process"]
"""thread: in the worker's process, `def` in a thread and `async def` on the event loop. process: in another process,
which the worker can kill."""


def check_executor(executor: object) -> None:
    if executor not in get_args(Executor):
        raise Invalid(f"executor is {executor!r}; write 'thread' or 'process'")
