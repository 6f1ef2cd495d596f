"""What wakes a supervisor: signals, and calls from other threads."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from types import FrameType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Noticed:
    """A descriptor that can be read when there is something to do. Only in the main thread."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        self._had_terminal = _has_terminal()

    def __enter__(self) -> Self:
        self._descriptor_before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before: dict[int, Any] = {}
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` means it
                self._before[number] = signal.signal(number, _noticed)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._descriptor_before)
        self._read.close()
        self._write.close()

    def fileno(self) -> int:
        return self._read.fileno()

    def wake(self) -> None:
        """From any thread."""
        with suppress(BlockingIOError):  # then there is enough to wake it
            self._write.send(b"\0")

    def signals(self) -> list[int]:
        """The numbers of the signals that arrived."""
        with suppress(BlockingIOError):
            return [number for number in self._read.recv(4096) if number]
        return []

    def has_lost_terminal(self) -> bool:
        """SIGHUP asks for a restart, unless it is what a terminal sends when it is closed."""
        return self._had_terminal and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _noticed(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has it."""
