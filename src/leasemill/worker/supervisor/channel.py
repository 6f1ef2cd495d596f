"""The control channel between a supervisor and one of its processes: a socket, JSON, one message a line."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Message: TypeAlias = dict[str, Any]

READ_BYTES: Final = 65_536


class Channel:
    """One end. The supervisor's never waits: what a stopped process does not read is kept and sent with `flush`."""

    def __init__(self, end: socket.socket, *, send_waits: bool) -> None:
        self._socket = end
        self._send_flags = socket.MSG_NOSIGNAL | (0 if send_waits else socket.MSG_DONTWAIT)
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._unread = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, from any thread. A message to an end that is gone is dropped."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._unsent += line
            self._flush()

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent, self._send_flags)
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()
                return
            del self._unsent[:sent]

    def receive(self, *, waits: bool = True) -> list[Message] | None:
        """The messages that have arrived, none if not all of one has; None: the other end is gone.

        Without `waits` an empty answer means that nothing more is there: a long message is read to its end first.
        """
        while True:
            try:
                data = self._socket.recv(READ_BYTES, 0 if waits else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except OSError:
                return None
            if not data:
                return None
            self._unread += data
            if waits or b"\n" in data:
                break
        *lines, rest = self._unread.split(b"\n")
        self._unread = bytearray(rest)
        return [json.loads(line) for line in lines]
