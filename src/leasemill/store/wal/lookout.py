"""One thread that looks out for all who wait in this process: for a job's end (O9), or for a cancelled run (O10).

It starts with the first of them and ends after the last. While somebody waits for an end it has the replica catch up
after every write to the folder: one look at a time, a rest after each, and without the folder's lock, so that writers
do not notice. Cancelled runs are announced by the lock file's time stamp, so a busy folder costs a worker nothing.
Where the system does not report writes, it looks once a second.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from leasemill.store.ends import Cancellations, Ends
from leasemill.store.wal.disk import LOCK_NAME
from leasemill.store.wal.watch import IN_ATTRIB, Ear

LOOK_EVERY_S: Final = 1.0
LINGER_S: Final = 1.0
"""How long the thread stays when nobody waits any more: callers that wait for one job after the other share it."""
SHORTEST_REST_S: Final = 0.003
"""After a look: a busy folder's writer is then 3 % slower beside a process that waits, with 1 ms it was 12 %."""
LONGEST_REST_S: Final = 0.05


class Lookout:
    """`look` has the replica catch up, and may raise nothing."""

    def __init__(self, path: Path, look: Callable[[], None]) -> None:
        self._path = path
        self._look = look
        self.ends = Ends(self._changed)
        self.cancellations = Cancellations(self._changed)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._log_ear: Ear | None = None
        self._lock_ear: Ear | None = None
        self._nudges: tuple[int, int] | None = None

    def announce_cancellation(self) -> None:
        """After the cancellation was appended: whoever is woken by this finds it."""
        try:
            os.utime(self._path / LOCK_NAME)
        except OSError:
            self.cancellations.notify()  # a folder that is away, or no folder at all: at least those of this process

    def reset(self) -> None:
        """In a forked child: the thread is not there, and what was heard is the parent's."""
        self._close_ears()
        self._begin()
        self.ends.reset()
        self.cancellations.reset()

    def close(self) -> None:
        """Wake everybody: they will learn from the store that it is closed."""
        self.cancellations.reset()
        self.ends.notify_all()
        self._changed()

    # The thread

    def _changed(self) -> None:
        """Somebody came or left. Whoever waits for an end looks after this returned, so it hears from now on."""
        with self._lock:
            if self._thread is None and (self.ends or self.cancellations):
                self._nudges = _pipe()
                self._thread = threading.Thread(target=self._run, name=f"leasemill lookout {self._path}", daemon=True)
                self._open_ears()
                self._thread.start()
            elif self._nudges is not None:
                self._open_ears()
                _nudge(self._nudges[1])

    def _open_ears(self) -> None:
        if self.ends and self._log_ear is None:
            self._log_ear = Ear(self._path)
        if self.cancellations and self._lock_ear is None:
            self._lock_ear = Ear(self._path / LOCK_NAME, IN_ATTRIB)

    def _run(self) -> None:
        stamped_at = self._stamped_at()
        waited_at = time.monotonic()
        while True:
            with self._lock:
                if self.ends:
                    waited_at = time.monotonic()
                is_over = not self.ends and time.monotonic() - waited_at >= LINGER_S
                if is_over and self._log_ear is not None:
                    self._log_ear.close()
                    self._log_ear = None
                if is_over and not self.cancellations:
                    self._close_ears()
                    self._thread = None
                    return
                log_ear = self._log_ear if self.ends else None
                lock_ear, nudge = self._lock_ear, _reading(self._nudges)
            heard = _heard(nudge, log_ear, lock_ear, is_patient=is_over)
            if nudge in heard:
                _drain(nudge)
            if lock_ear is not None:
                stamp = self._stamped_at()
                if lock_ear.fd in heard or (lock_ear.fd is None and stamp != stamped_at):
                    lock_ear.forget()
                    self.cancellations.notify()
                stamped_at = stamp
            if log_ear is not None and (log_ear.fd in heard or not heard):
                log_ear.forget()
                self._look_for_ends()

    def _look_for_ends(self) -> None:
        began = time.monotonic()
        self._look()
        took_s = time.monotonic() - began
        time.sleep(min(max(took_s, SHORTEST_REST_S), LONGEST_REST_S))

    def _stamped_at(self) -> int:
        try:
            return (self._path / LOCK_NAME).stat().st_mtime_ns
        except OSError:
            return 0

    def _close_ears(self) -> None:
        for ear in (self._log_ear, self._lock_ear):
            if ear is not None:
                ear.close()
        self._log_ear = self._lock_ear = None
        if self._nudges is not None:
            for fd in self._nudges:
                os.close(fd)
            self._nudges = None


def _heard(nudge: int, log_ear: Ear | None, lock_ear: Ear | None, *, is_patient: bool) -> set[int | None]:
    """Those that have something to read: within a second, unless all that is waited for will be heard."""
    poll = select.poll()
    poll.register(nudge, select.POLLIN)
    for ear in (log_ear, lock_ear):
        if ear is not None and ear.fd is not None:
            poll.register(ear.fd, select.POLLIN)
    is_deaf = lock_ear is not None and lock_ear.fd is None
    timeout_ms = None if is_patient and log_ear is None and not is_deaf else LOOK_EVERY_S * 1_000
    return {fd for fd, _ in poll.poll(timeout_ms)}


def _reading(nudges: tuple[int, int] | None) -> int:
    assert nudges is not None
    return nudges[0]


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return reading, writing


def _nudge(fd: int) -> None:
    try:
        os.write(fd, b"!")
    except BlockingIOError:
        return  # it has been nudged often enough


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return
