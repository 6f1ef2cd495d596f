"""The flag by which a handler learns, in whatever thread it runs, that its lease is lost."""

from __future__ import annotations

import threading
import time
from typing import Final

NOT_EXTENDED: Final = "it could not be extended in time"
"""The reason of a loss of which the store has reported nothing."""
TIMED_OUT: Final = "timed out"
SHUTTING_DOWN: Final = "the worker is shutting down"

_events_lock: Final = threading.Lock()


class LossSignal:
    """Set when the job is no longer this handler's. It stays set: nothing gives the job back to this run (X8).

    Set by the worker, and by time: past `held_until` (the worker's monotonic time) another worker may have the job,
    even if the store could not report it.
    """

    __slots__ = ("_event", "held_until", "reason")

    def __init__(self, held_until: float) -> None:
        self.held_until = held_until
        self.reason: str | None = None
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        if self.reason is not None:
            return True
        if time.monotonic() < self.held_until:
            return False
        # The handler acts on this answer, so an extension that is confirmed a moment later must not take it back.
        self.set(NOT_EXTENDED)
        return True

    def set(self, reason: str) -> None:
        with _events_lock:
            if self.reason is None:
                self.reason = reason
            if self._event is not None:
                self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most this many seconds; True if it is."""
        event = self._made_event()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            now = time.monotonic()
            until = self.held_until if deadline is None else min(deadline, self.held_until)
            if event.wait(max(0.0, until - now)):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return self.is_set()
        return True

    def _made_event(self) -> threading.Event:
        with _events_lock:
            if self._event is None:
                self._event = threading.Event()
                if self.reason is not None:
                    self._event.set()
            return self._event
