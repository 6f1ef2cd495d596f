"""A terminal that answers keys at once and notices its resizing; put back as it was, however its use ends.

While keys are read, Ctrl-C interrupts as usual. Ctrl-Z does nothing: a stopped program would leave its screen behind.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Final, Self

CLOSED: Final = ""
"""The key that is read of a terminal that is gone."""


class Keyboard:
    """Keys of standard input, where that is a terminal. `wake` may be called from any thread."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._lock = threading.RLock()  # a signal's handler may interrupt its holder
        self._is_open = False
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None

    @property
    def is_there(self) -> bool:
        return self._input is not None

    def __enter__(self) -> Self:
        self._woken, self._wake = os.pipe()
        self._is_open = True
        self._stack.callback(self._close)
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        for number, handler in ((signal.SIGWINCH, self._resized), (signal.SIGTERM, _end)):
            self._stack.callback(signal.signal, number, signal.signal(number, handler))
        if self._input is not None:
            before = termios.tcgetattr(self._input)
            self._stack.callback(termios.tcsetattr, self._input, termios.TCSAFLUSH, before)
            tty.setcbreak(self._input)
            settings = termios.tcgetattr(self._input)
            settings[6][termios.VSUSP] = b"\0"
            termios.tcsetattr(self._input, termios.TCSADRAIN, settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait(self, timeout_s: float) -> str | None:
        """The next key; None if the time has passed, or there is something new to show."""
        sources = [self._woken] if self._input is None else [self._woken, self._input]
        ready, _, _ = select.select(sources, [], [], max(0.0, timeout_s))
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._input is not None and self._input in ready:
            return os.read(self._input, 1).decode(errors="replace") or CLOSED
        return None

    def wake(self) -> None:
        with self._lock, suppress(BlockingIOError):  # it is full, and will wake
            if self._is_open:
                os.write(self._wake, b"\0")

    def _close(self) -> None:
        with self._lock:
            self._is_open = False
            os.close(self._woken)
            os.close(self._wake)

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        self.wake()


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
