"""One connection to a server, and those that are kept: a POST in one write, its answer in as few reads as it takes.

httptools reads the answers. What is around it is our own, for a general HTTP client spends more on a call than the
server's store does on a small command (docs/decisions/0037-http.md has the figures): no redirects, no cookies, no
compression. What must never happen here: a connection that is used again although something of the answer before is
left in it.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httptools

from leasemill.store.http.retry_policy import CallFailed

CONNECT_S: Final = 5.0
IDLE_S: Final = 30.0
"""Less than a server keeps an idle connection."""
IDLE_CONNECTIONS: Final = 64
READ_BYTES: Final = 64 * 1024
HEAD_BYTES: Final = 64 * 1024
"""The most that may come of an answer before its content."""
HAS_LENGTH: Final = frozenset({"content-length", "transfer-encoding"})


class Response(NamedTuple):
    """`headers`: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Origin(NamedTuple):
    """The server to connect to; `tls` is None for plain HTTP."""

    host: str
    port: int
    name: str
    """The server's name as the Host header has it."""
    prefix: str
    tls: ssl.SSLContext | None


def origin_of(base: str, tls: ssl.SSLContext | None) -> Origin:
    parts = urlsplit(base)
    assert parts.hostname is not None
    return Origin(parts.hostname, parts.port or (80 if tls is None else 443), parts.netloc, parts.path, tls)


class Connection:
    """One connection, used by one thread at a time."""

    def __init__(self, origin: Origin, answer_s: float) -> None:
        try:
            self._socket: socket.socket = socket.create_connection((origin.host, origin.port), CONNECT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if origin.tls is not None:
                self._socket = origin.tls.wrap_socket(self._socket, server_hostname=origin.host)
        except (OSError, UnicodeError) as error:  # the latter: a name that no host can have
            raise CallFailed(error, was_sent=False) from None
        self._socket.settimeout(answer_s)
        self._idle = select.poll()
        self._idle.register(self._socket, select.POLLIN)
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._is_whole = True
        self._is_kept = False
        self.is_reusable = False
        """The answer was read to its end, and the server keeps the connection."""
        self.idle_since = 0.0

    def post(self, head: bytes, body: bytes) -> Response:
        self.is_reusable = self._is_whole = False
        self._status, self._chunks = 0, []
        try:
            is_sent = self._send(head + body)
            self._read()
        except (OSError, ValueError, AttributeError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # ValueError and AttributeError: an SSLSocket that was closed meanwhile
            raise CallFailed(error, was_sent=True) from None
        self.is_reusable &= is_sent
        return Response(self._status, self._headers, b"".join(self._chunks))

    def _send(self, request: bytes) -> bool:
        """False: nobody reads the rest of it. A server, or a proxy before it, that finds a request too large answers
        before it has all of it, and may close the connection."""
        try:
            self._socket.sendall(request)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def is_usable(self) -> bool:
        """Whether it can take another request: it is not old, and the server has neither closed it nor sent more."""
        return time.monotonic() - self.idle_since < IDLE_S and not self._idle.poll(0)

    def interrupt(self) -> None:
        """End the call that another thread is in. An SSLSocket forgets its TLS before it shuts down, and what that
        thread sends then would be sent as it is."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _read(self) -> None:
        read_bytes = 0
        while not self._is_whole:
            data = self._socket.recv(READ_BYTES)
            if not data and self._ends_with_the_connection:
                return
            if not data:
                raise ConnectionError("the connection was closed")
            read_bytes += len(data)
            self._parser.feed_data(data)
            if not self._status and read_bytes > HEAD_BYTES:
                raise httptools.HttpParserError("the head of the answer is too long")
        self.is_reusable = self._is_kept

    @property
    def _ends_with_the_connection(self) -> bool:
        return bool(self._status) and self._headers.keys().isdisjoint(HAS_LENGTH)

    # What the parser reports -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise ValueError("there is more than one answer")
        self._status, self._headers = 0, {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # else it is a trailer
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").rstrip()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # else the answer itself is to come
            self._status = status

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        self._is_whole = self._status > 0
        self._is_kept = self._parser.should_keep_alive()


class DirectCalls:
    """The connections to one server, for threads. A forked child must have its own."""

    def __init__(self, origin: Origin, answer_s: float) -> None:
        self._origin = origin
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._idle: deque[Connection] = deque()
        self._used: set[Connection] = set()
        self._is_closed = False

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        origin = self._origin
        lines = [f"POST {origin.prefix}{path} HTTP/1.1", f"host: {origin.name}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, "\r\n"]).encode("latin-1")
        connection = self._taken()
        try:
            return connection.post(head, body)
        finally:
            self._give_back(connection)

    def _taken(self) -> Connection:
        while (connection := self._take()) is not None:
            if connection.is_usable():
                return connection
            self._forget(connection)
        connection = Connection(self._origin, self._answer_s)
        with self._lock:
            self._used.add(connection)
            is_closed = self._is_closed
        if is_closed:
            connection.interrupt()
        return connection

    def _take(self) -> Connection | None:
        """Take the idle connection that was used last: the others may grow old."""
        with self._lock:
            if not self._idle:
                return None
            connection = self._idle.pop()
            self._used.add(connection)
            return connection

    def _give_back(self, connection: Connection) -> None:
        now = time.monotonic()
        connection.idle_since = now
        with self._lock:
            self._used.discard(connection)
            is_kept = connection.is_reusable and not self._is_closed
            if is_kept:
                self._idle.append(connection)
            old = []
            while self._idle and (len(self._idle) > IDLE_CONNECTIONS or now - self._idle[0].idle_since > IDLE_S):
                old.append(self._idle.popleft())
        for one in old if is_kept else [*old, connection]:
            one.close()

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            self._used.discard(connection)
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, deque()
            used = list(self._used)
        for connection in idle:
            connection.close()
        for connection in used:
            connection.interrupt()

    def abandon(self) -> None:
        """In a forked child: forget the parent's connections. The lock may be held by a thread that is not here."""
        for connection in [*self._idle, *self._used]:
            connection.close()  # of the two descriptors of a connection one; the parent's goes on
