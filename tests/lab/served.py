"""`leasemill serve` in a process of its own, with all that it prints."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from leasemill.store.access_keys import ALL_QUEUES, AccessKey, new_key
from leasemill.store.factory import open_store
from leasemill.store.url import URL_VARIABLE
from leasemill.wire.routes import Role

LIMIT_S = 60.0
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Served:
    """A running server. `output` grows."""

    def __init__(self, url: str, options: Sequence[str], program: str = "leasemill") -> None:
        command = [sys.executable, "-m", program, "serve", "--url", url, "--listen", "127.0.0.1:0", *options]
        environment = {name: value for name, value in os.environ.items() if name != URL_VARIABLE}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.output: list[str] = []
        self.port = 0
        self._started = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._started.wait(LIMIT_S), self.text
        assert self.port, self.text

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def text(self) -> str:
        return "".join(self.output)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def memory_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), LIMIT_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(LIMIT_S)
        finally:
            self.process.kill()
            self._reader.join(LIMIT_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.output.append(line)
                match = re.search(r"serving .* on https?://[^ ]*:(\d+)", line)
                if match:
                    self.port = int(match[1])
                    self._started.set()
        self._started.set()


@contextmanager
def serving(url: str, *options: str, program: str = "leasemill") -> Iterator[Served]:
    served = Served(url, options, program)
    try:
        yield served
    finally:
        if served.is_running:
            served.stop()


def add_key(
    url: str, *roles: Role, name: str = "ci", queues: Sequence[str] = ALL_QUEUES, expires_at: int | None = None
) -> tuple[AccessKey, str]:
    """A key in the store, and its text."""
    key, text = new_key(name=name, roles=roles or Role, now=1, by="ada", queues=queues, expires_at=expires_at)
    with open_store(url) as store:
        store.keys.add(key)
    return key, text


def exchange(served: Served, raw: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """What comes back for these bytes, until the server closes or has answered once."""
    with served.connect() as connection:
        connection.settimeout(LIMIT_S)
        if context is None:
            connection.sendall(raw)
            return read_reply(connection)
        with context.wrap_socket(connection, server_hostname="localhost") as wrapped:
            wrapped.sendall(raw)
            return read_reply(wrapped)


def read_reply(connection: socket.socket) -> bytes:
    """One answer with a length, or whatever came before the connection was closed."""
    received = b""
    while True:
        received = received.removeprefix(CONTINUE)
        head, separator, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if separator and length and len(body) >= int(length[1]):
            return received
        try:
            chunk = connection.recv(65_536)
        except ConnectionResetError:
            return received
        if not chunk:
            return received
        received += chunk


def status_of(reply: bytes) -> int:
    match = re.match(rb"HTTP/1\.1 (\d{3})", reply)
    return int(match[1]) if match else 0


def post(path: str, body: bytes = b"{}", key: str | None = None, *, host: str = "localhost", more: str = "") -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", "content-type: application/json", f"content-length: {len(body)}"]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    if more:
        lines.append(more)
    return "\r\n".join([*lines, "", ""]).encode() + body
