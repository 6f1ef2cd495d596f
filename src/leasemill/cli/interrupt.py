"""Ctrl-C between two batches, so that a command that is interrupted can report exactly what it has done.

The first one is noted, and raises KeyboardInterrupt at the next `check`; a second one raises it at once.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Final, Self

LOOK_S: Final = 0.1


class Interruptible:
    """Delays Ctrl-C until `check`. Like signals, it takes effect in the main thread alone."""

    def __init__(self) -> None:
        self._is_asked = False
        self._is_installed = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
            self._is_installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        if self._is_asked:
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.check()
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left_s))
            self.check()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True
