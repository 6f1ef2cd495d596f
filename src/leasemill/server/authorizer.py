"""The authorizer of a server: it decides who may ask for what, and how much at a time.

A request is checked twice: `admit` is called when nothing but its head has been read, `perform` when its command is
known. `left` is called once for each admission, when the answer was sent or the caller went away. All raise `Denied` to
answer with a problem. `Authorizer` allows everything; `KeyAuthorizer` checks keys and limits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from leasemill.kernel.bounds import BATCH_BYTES
from leasemill.kernel.command import Command
from leasemill.wire.routes import Route

BODY_BYTES: Final = 2 * BATCH_BYTES
BODY_S: Final = 30.0
Run: TypeAlias = Callable[[Command[Any]], Awaitable[Any]]
"""Carries a command out: of the kernel by the store, a request of `wire.requests` by the server."""


class RequestHead(Struct, frozen=True):
    """The head of a request: what is known before its body. Names of headers are in lower case. `route`: None for what
    is not a command (the reference, metrics, a dashboard)."""

    method: str
    path: str
    headers: Mapping[str, str]
    client: str
    """The address it came from."""
    route: Route | None


class Admission(Struct, frozen=True):
    """`principal`: whose request it is, as it may be shown and logged. `body_bytes`, `body_s`: how large its body may
    be, and how long it may take to arrive."""

    principal: str = "anybody"
    body_bytes: int = BODY_BYTES
    body_s: float = BODY_S


class Authorizer:
    """Allows everything."""

    async def admit(self, head: RequestHead) -> Admission:
        """Admit a request before its body is read, also for paths that are not commands."""
        return Admission()

    async def perform(self, admission: Admission, route: Route, command: Command[Any], run: Run) -> Any:
        """Return the answer to the command, which `run` carries out; the server has filled in its tokens and ids. An
        authorizer with keys checks that the caller may, runs the command with the caller's name in it, and returns the
        part of the answer that the caller may see."""
        return await run(command)

    def left(self, admission: Admission) -> None:
        """The request is over."""
