"""A TCP proxy that cuts connections to PostgreSQL at a chosen request: before it, while it is carried out, or when the
server has answered and nobody has heard it. Or it falls silent: it takes connections and requests and hands on nothing.

Requests are counted over all connections, from the moment a cut is armed. The proxy reads no more of the protocol than
where a request and an answer end.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto
from typing import Self

CHUNK = 65_536


class Cut(Enum):
    BEFORE = auto()
    """The request never reaches the server."""
    DURING = auto()
    """It does, and nobody waits for the answer."""
    AFTER = auto()
    """The server has carried it out and answered; the answer is lost."""


class Proxy:
    """Listens on a port of its own and hands everything on, until it is to cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._armed: tuple[Cut, int] | None = None
        self._requests = 0
        self.cuts = 0
        self._speaks = threading.Event()
        self._speaks.set()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut_all()

    def arm(self, cut: Cut, number: int) -> None:
        """Cut at the `number`-th request from now on."""
        with self._lock:
            self._armed, self._requests = (cut, number), 0

    def disarm(self) -> bool:
        """Whether it was still armed: then there were fewer requests than that."""
        with self._lock:
            was_armed, self._armed = self._armed is not None, None
            return was_armed

    def fall_silent(self) -> None:
        """From now on nothing is handed on, in either direction, and nothing is closed."""
        self._speaks.clear()

    def speak(self, *, forgets: bool = False) -> None:
        """Hand on again, also what came meanwhile; or only what comes on connections made from now on."""
        if forgets:
            self._speaks = threading.Event()
        self._speaks.set()

    def cut_all(self) -> None:
        """Every connection at once."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            _close(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        swallows, speaks = threading.Event(), self._speaks
        threading.Thread(target=self._answers, args=(client, server, swallows, speaks), daemon=True).start()
        try:
            for request, is_answered in requests(client):
                speaks.wait()
                cut = self._cut_now() if is_answered else None
                if cut is Cut.AFTER:
                    swallows.set()
                if cut is not Cut.BEFORE:
                    server.sendall(request)
                if cut is Cut.BEFORE or cut is Cut.DURING:
                    break
        except OSError:
            pass
        finally:
            if not swallows.is_set():
                _close(client)
                _close(server)

    def _answers(
        self, client: socket.socket, server: socket.socket, swallows: threading.Event, speaks: threading.Event
    ) -> None:
        """What the server sends goes to the client; a swallowed answer is read to its end, then both are cut."""
        rest = b""
        try:
            while data := server.recv(CHUNK):
                speaks.wait()
                if not swallows.is_set():
                    client.sendall(data)
                    continue
                rest += data
                if any(kind == b"Z" for kind in _kinds(rest)):
                    break
        except OSError:
            pass
        finally:
            _close(client)
            _close(server)

    def _cut_now(self) -> Cut | None:
        with self._lock:
            if self._armed is None:
                return None
            self._requests += 1
            cut, number = self._armed
            if self._requests < number:
                return None
            self._armed = None
            self.cuts += 1
            return cut


def requests(client: socket.socket) -> Iterator[tuple[bytes, bool]]:
    """What the client sends, in pieces the server answers: a query, a batch up to its sync, the start of a session.

    With whether the answer has an end of its own: that to a flush has not, the batch goes on.
    """
    buffer = b""
    has_begun = False
    while data := client.recv(CHUNK):
        buffer += data
        at = start = 0
        while True:
            kind_bytes = 1 if has_begun else 0  # the first message has no kind
            head = at + kind_bytes + 4
            if len(buffer) < head:
                break
            end = at + kind_bytes + int.from_bytes(buffer[head - 4 : head])
            if len(buffer) < end:
                break
            kind = buffer[at : at + 1]
            is_whole = not has_begun or kind in {b"Q", b"S", b"p", b"X", b"H"}
            is_answered = not has_begun or kind != b"H"
            has_begun, at = True, end
            if is_whole:
                yield buffer[start:end], is_answered
                start = end
        buffer = buffer[start:]


def _kinds(answer: bytes) -> Iterator[bytes]:
    at = 0
    while at + 5 <= len(answer):
        end = at + 1 + int.from_bytes(answer[at + 1 : at + 5])
        if end > len(answer):
            return
        yield answer[at : at + 1]
        at = end


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
