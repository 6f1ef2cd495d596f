"""HTTP/1.1 as uvicorn speaks it, with time limits that uvicorn does not have.

uvicorn closes connections that are idle between requests, and nothing else: one that sends its head a byte a minute,
goes on sending a body after its request was refused, or never reads its answer, stays for ever. Here each of these
has a deadline, and there are at most so many connections. When there are too many, the oldest that has not sent a whole
head yet is closed, or else the one that has been idle longest: however many of them somebody opens, there is room for
the next client.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_BYTES: Final = 32 * 1024
"""The most a request's line and headers may have: `h11_max_incomplete_event_size`."""
HEAD_S: Final = 10.0
LINGER_S: Final = 2.0
"""After an early refusal what is still sent is thrown away for so long, so that the refusal can be read."""
STUCK_S: Final = 30.0
CONNECTIONS: Final = 4_000
SILENT: Final = 500
"""Connections without a whole head, at most."""
FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connected:
    """The connections of one server."""

    def __init__(self, most: int = CONNECTIONS, most_silent: int = SILENT) -> None:
        self.most = most
        self.most_silent = most_silent
        self.silent: OrderedDict[GuardedProtocol, None] = OrderedDict()
        """Those that have not sent a whole head, the oldest first."""
        self.idle: OrderedDict[GuardedProtocol, None] = OrderedDict()
        """Those between two requests, the one first that has been so longest."""

    def make_room(self) -> bool:
        """Close a connection on which nobody waits for an answer; False: there is none."""
        for waiting in (self.silent, self.idle):
            if waiting:
                oldest, _ = waiting.popitem(last=False)
                oldest.transport.abort()
                return True
        return False


def guarded(connected: Connected) -> type[H11Protocol]:
    """The protocol of one server, as `uvicorn.Config(http=…)` takes it."""
    return type("ServedProtocol", (GuardedProtocol,), {"connected": connected})


class GuardedProtocol(H11Protocol):
    """One connection."""

    connected = Connected()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._stuck_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connected.most and not self.connected.make_room():
            transport.write(FULL)
            transport.close()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        self.connected.idle.pop(self, None)
        for timer in (self._linger_timer, self._stuck_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.connected.idle.pop(self, None)
        if not self._is_in_request and self._head_timer is None:
            self._await_head()
        try:
            super().data_received(data)
        except h11.LocalProtocolError:
            self.transport.abort()  # nonsense after an answer has begun: there is nothing more to say
        if self._is_in_request:
            self._has_head()
        if self._linger_timer is not None and self.conn.their_state is not h11.SEND_BODY:
            self._linger_timer.cancel()
            self._linger_timer = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and self._linger_timer is None:
            self._linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)
        if not self._is_in_request and not self.transport.is_closing():
            self.connected.idle[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck_timer = self.loop.call_later(STUCK_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None

    @property
    def _is_in_request(self) -> bool:
        """From the end of a head to the end of its answer."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)
        self.connected.silent[self] = None
        if len(self.connected.silent) > self.connected.most_silent:
            self.connected.make_room()

    def _has_head(self) -> None:
        self.connected.silent.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
