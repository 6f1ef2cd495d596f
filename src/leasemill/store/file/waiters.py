"""One thread for all callers of this process that wait: for a job's end (O9), or for a cancelled run (O10).

It starts with the first of them and ends after the last. While somebody waits for an end, the replica catches up after
every write to the folder: one look at a time, a pause after each, and without the folder's lock, so that writers do
not notice. Cancelled runs are announced by the lock file's time stamp, so a busy folder costs a worker nothing.
Where the system does not report writes, it looks once a second.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from leasemill.store.file.folder import LOCK_NAME
from leasemill.store.file.watch import IN_ATTRIB, Inotify
from leasemill.store.notifications import Cancellations, Ends

LOOK_EVERY_S: Final = 1.0
LINGER_S: Final = 1.0
"""How long the thread stays when nobody waits any more: callers that wait for one job after the other share it."""
SHORTEST_PAUSE_S: Final = 0.003
"""After a look: a busy folder's writer is then 3 % slower beside a process that waits, with 1 ms it was 12 %."""
LONGEST_PAUSE_S: Final = 0.05


class FolderWaiters:
    """The waiters of one folder in this process. `catch_up` lets the replica catch up, and raises nothing."""

    def __init__(self, path: Path, catch_up: Callable[[], None]) -> None:
        self._path = path
        self._catch_up = catch_up
        self._is_closed = False
        self.ends = Ends(self._changed)
        self.cancellations = Cancellations(self._changed)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._log_writes: Inotify | None = None
        self._lock_changes: Inotify | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None

    def announce_cancellation(self) -> None:
        """Wake the workers of all processes after a cancellation was appended: they find it when they look."""
        try:
            os.utime(self._path / LOCK_NAME)
        except OSError:
            self.cancellations.notify()  # the folder is unavailable, or simulated: at least those of this process

    def reset(self) -> None:
        """Begin again in a forked child: the thread and what it watched are the parent's."""
        self._close_watches()
        self._begin()
        self.ends.reset()
        self.cancellations.reset()

    def close(self) -> None:
        """Wake everybody: they will learn from the store that it is closed. The thread ends when the last has left."""
        self._is_closed = True
        self.cancellations.reset()
        self.ends.notify_all()
        self._changed()

    # The thread

    def _changed(self) -> None:
        """Note that a waiter came or left. One for an end looks after this returned: later writes are reported."""
        with self._lock:
            if self._thread is None and (self.ends or self.cancellations):
                self._wake = socket.socketpair()
                for end in self._wake:
                    end.setblocking(False)
                self._thread = threading.Thread(target=self._run, name=f"leasemill waiters {self._path}", daemon=True)
                self._open_watches()
                self._thread.start()
            elif self._wake is not None:
                self._open_watches()
                with suppress(BlockingIOError):  # it will wake anyway
                    self._wake[1].send(b"!")

    def _open_watches(self) -> None:
        if self.ends and self._log_writes is None:
            self._log_writes = Inotify(self._path)
        if self.cancellations and self._lock_changes is None:
            self._lock_changes = Inotify(self._path / LOCK_NAME, IN_ATTRIB)

    def _run(self) -> None:
        stamped_at = self._stamped_at()
        waited_at = time.monotonic()
        while True:
            # Whether to go on is decided under the lock, in which `_changed` starts a thread if there is none: a caller
            # that comes at this moment is either seen here or finds no thread and starts another.
            with self._lock:
                if self.ends:
                    waited_at = time.monotonic()
                is_over = not self.ends and (self._is_closed or time.monotonic() - waited_at >= LINGER_S)
                if is_over and self._log_writes is not None:
                    self._log_writes.close()
                    self._log_writes = None
                if is_over and not self.cancellations:
                    self._close_watches()
                    self._thread = None
                    return
                log_writes = self._log_writes if self.ends else None
                assert self._wake is not None
                lock_changes, wake = self._lock_changes, self._wake[0]
            readable = _wait(wake.fileno(), log_writes, lock_changes, is_idle=is_over)
            with suppress(BlockingIOError):
                while wake.recv(4096):
                    pass
            if lock_changes is not None:
                stamp = self._stamped_at()
                if lock_changes.fd in readable or (lock_changes.fd is None and stamp != stamped_at):
                    lock_changes.drain()
                    self.cancellations.notify()
                stamped_at = stamp
            # Drained before the look, not after: a write that the look just missed makes the descriptor readable again.
            # If nothing was reported for a second it looks as well: systems without inotify report nothing.
            if log_writes is not None and (log_writes.fd in readable or not readable):
                log_writes.drain()
                self._look_for_ends()

    def _look_for_ends(self) -> None:
        # The pause is as long as the look, within bounds: beside a busy folder a process that waits takes about half of
        # the time for it, and leaves the other half to its own threads.
        began = time.monotonic()
        self._catch_up()
        took_s = time.monotonic() - began
        time.sleep(min(max(took_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S))

    def _stamped_at(self) -> int:
        try:
            return (self._path / LOCK_NAME).stat().st_mtime_ns
        except OSError:
            return 0

    def _close_watches(self) -> None:
        for watch in (self._log_writes, self._lock_changes):
            if watch is not None:
                watch.close()
        self._log_writes = self._lock_changes = None
        if self._wake is not None:
            for end in self._wake:
                end.close()
            self._wake = None


def _wait(wake_fd: int, log_writes: Inotify | None, lock_changes: Inotify | None, *, is_idle: bool) -> set[int | None]:
    """Return the descriptors that have something to read. It waits for a second at most, or without a limit if the
    system reports everything that is waited for."""
    poll = select.poll()
    poll.register(wake_fd, select.POLLIN)
    for watch in (log_writes, lock_changes):
        if watch is not None and watch.fd is not None:
            poll.register(watch.fd, select.POLLIN)
    is_polled = lock_changes is not None and lock_changes.fd is None
    timeout_ms = None if is_idle and log_writes is None and not is_polled else LOOK_EVERY_S * 1_000
    return {fd for fd, _ in poll.poll(timeout_ms)}
