"""One request and its answer, as the protocol and the application share them.

ASGI takes an answer in two messages, which uvicorn writes in two calls of the system, and hands a body over by an event
that has to be waited for. Most commands come in one piece and are answered in one: an application that finds an
exchange in its scope takes the whole body, if it is there, and gives the whole answer. What must never happen here: an
answer that ASGI would have sent otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from leasemill.wire.problems import PROBLEM_TYPE, problem

EXTENSION: Final = "leasemill.exchange"
"""Under this name the application finds it among the scope's extensions."""
FAILED: Final = problem(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", "the server failed; its log has the reason")


class Exchange(RequestResponseCycle):
    """Of one connection, one after the other."""

    def take_body(self) -> bytes | None:
        """The whole body; None: a part of it is still to come, and `receive` waits for it."""
        if self.more_body or self.waiting_for_100_continue or self.disconnected:
            return None
        self.message_event.clear()  # what comes next is that the caller goes away
        body, self.body = bytes(self.body), bytearray()
        return body

    def reply(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """The whole answer, in one write. Nothing is unsent before it: a connection has one request at a time."""
        if self.disconnected:
            return
        self.response_started = True
        self.waiting_for_100_continue = False
        lines = [STATUS_LINE[status]]
        for name, value in (*self.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        shown = b"" if self.scope["method"] == "HEAD" else body
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (b"".join(lines), len(body), shown))
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    async def send_500_response(self) -> None:
        """The application raised; uvicorn has logged it. Nothing of it is shown."""
        self.keep_alive = False
        self.reply(FAILED.status, [(b"content-type", PROBLEM_TYPE.encode())], msgspec.json.encode(FAILED))


def exchange_of(scope: Any) -> Exchange | None:
    """None: another server runs the application."""
    found: Exchange | None = scope.get("extensions", {}).get(EXTENSION)
    return found
