"""A socket between a worker and a handler's process: messages whole, in order, from any thread."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Final

from leasemill.worker.processes.messages import ToChild, ToWorker, encode

HEADER: Final = struct.Struct("!I")
READ_BYTES: Final = 256 * 1024


class MessageChannel:
    """One end of the socket. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.RLock()  # a finaliser that runs here may log, and send, too
        self._unsent = b""
        """The rest of a message that was offered and did not fit."""
        self._received = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def end(self) -> None:
        """Send no more; what the other end still sends can be received."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def send(self, message: ToChild | ToWorker) -> None:
        """Send it, however long that takes. Raises OSError when nobody is there to read."""
        frame = _frame(message)
        with self._sending:
            if self._unsent:
                frame, self._unsent = self._unsent + frame, b""
            self._socket.sendall(frame)

    def offer(self, message: ToChild) -> bool:
        """Send it if that can be done at once; False: it was dropped."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if self._unsent:
                return False
            frame = _frame(message)
            sent = self._socket.send(frame, socket.MSG_DONTWAIT)
            self._unsent = frame[sent:]
        except OSError:  # it does not fit, or the other end is gone
            return False
        finally:
            self._sending.release()
        return True

    def receive(self, flags: int = 0) -> list[bytes] | None:
        """What has come, after waiting for some of it: no, one or many messages; None: the other end is closed."""
        received = self._received
        try:
            data = self._socket.recv(READ_BYTES, flags)
        except ConnectionError:
            return None
        if not data:
            return None
        received += data
        messages: list[bytes] = []
        start = 0
        while len(received) - start >= HEADER.size:
            (length,) = HEADER.unpack_from(received, start)
            end = start + HEADER.size + length
            if end > len(received):
                break
            messages.append(bytes(received[start + HEADER.size : end]))
            start = end
        del received[:start]
        return messages


def _frame(message: ToChild | ToWorker) -> bytes:
    body = encode(message)
    return HEADER.pack(len(body)) + body
