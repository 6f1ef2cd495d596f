"""Who may ask for what, and how much at a time: the two places in a request's life where that is decided.

`admit` comes first, when nothing but the head of a request has been read; `perform` when its command is known.
`left` is called once for each admission, when the answer was sent or the caller went away. All raise `Denied` to answer
with a problem. This gate lets everybody in; one with keys and limits takes its place.
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
    """What is known of a request before its body. Names of headers are in lower case. `route`: None for what is not a
    command (the reference, metrics, a dashboard)."""

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


class ServerGate:
    """Lets everybody in."""

    async def admit(self, head: RequestHead) -> Admission:
        """Before the body is read; also for paths that are not commands."""
        return Admission()

    async def perform(self, admission: Admission, route: Route, command: Command[Any], run: Run) -> Any:
        """The answer to the command, which `run` carries out; tokens and ids that the server draws are in it. A gate
        with keys looks whether the caller may, runs it with the caller's name in it, and returns what the caller may
        see of the answer."""
        return await run(command)

    def left(self, admission: Admission) -> None:
        """The request is over."""
