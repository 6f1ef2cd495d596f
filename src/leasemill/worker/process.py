"""A worker that is the whole of its process: signals are noticed, and the process is gone by its limit, whatever runs.

A thread reads the signals, so a blocked event loop does not hide them; and when the time of the shutdown is over it
ends the process, whatever handlers, threads, child processes or the store do. What must never happen: this in a process
that is not the worker's alone. A program that runs a `Worker` itself decides for itself when it exits.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from leasemill.worker.exits import EXIT_OVERRUN
from leasemill.worker.worker import Worker

log = logging.getLogger("leasemill.worker")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LAST_WORDS_S: Final = 0.2
"""How long the last log line may take: whoever reads the log may be stuck as well."""


def run_process(worker: Worker, close: Callable[[], None], on_signal: Callable[[], None]) -> None:
    """Run the worker until it is stopped, then `close`; from then on nothing keeps the process alive for long."""
    last_resort = LastResort(worker.id)
    worker.shutdown.on_planned = last_resort.arm
    try:
        with signals_noticed(on_signal):
            worker.run_sync()
            close()
            last_resort.exit_code = 0
    finally:
        last_resort.has_finished = True


class LastResort:
    """Ends the process at a given time."""

    def __init__(self, worker_id: str) -> None:
        self.exit_code = EXIT_OVERRUN
        self.has_finished = False
        """The worker has ended: what keeps the process alive now are threads and child processes of handlers."""
        self._worker_id = worker_id
        self._changed = threading.Condition()
        self._at: float | None = None
        self._is_over = threading.Event()
        self._must_speak = True
        self._has_spoken = threading.Event()

    def arm(self, at: float) -> None:
        """At this monotonic time the process is ended, if it is still there. From any thread."""
        with self._changed:
            if self._at is None:
                self._at = at
                # Both now: when the interpreter is shutting down, no thread can be started.
                for target in (self._speak, self._wait):
                    threading.Thread(target=target, name="leasemill-last-resort", daemon=True).start()
            else:
                self._at = min(self._at, at)
                self._changed.notify()

    def _wait(self) -> None:
        with self._changed:
            assert self._at is not None
            while (left_s := self._at - time.monotonic()) > 0:
                self._changed.wait(left_s)
        if self.has_finished and threading.main_thread().is_alive():
            self._must_speak = False  # the command returned to a program that goes on, a test for example
            self._is_over.set()
            return
        self._is_over.set()
        self._has_spoken.wait(LAST_WORDS_S)
        os._exit(self.exit_code)

    def _speak(self) -> None:
        """In a thread of its own: a log that blocks must not keep the process."""
        self._is_over.wait()
        if self._must_speak:
            self._last_words()
            self._has_spoken.set()

    def _last_words(self) -> None:
        own = {threading.main_thread(), threading.current_thread()}
        left = sorted(thread.name for thread in threading.enumerate() if thread not in own and not thread.daemon)
        log.log(
            logging.WARNING if self.exit_code == 0 else logging.CRITICAL,
            "shutdown timeout exceeded, %s: ending the process with exit code %d%s",
            "the process is kept alive" if self.has_finished else "the worker has not stopped",
            self.exit_code,
            f"; threads still running: {', '.join(left)}" if left else "",
            extra={"worker": self._worker_id},
        )
        for handler in logging.getLogger().handlers:
            handler.flush()
        sys.stdout.flush()
        sys.stderr.flush()


@contextmanager
def signals_noticed(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop`, in a thread, for every signal that asks the process to end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may take signals: whoever runs it calls stop()
        return
    read, write = socket.socketpair()
    write.setblocking(False)
    threading.Thread(target=_read_signals, args=(read, stop), name="leasemill-signals", daemon=True).start()

    def noticed(number: int, frame: FrameType | None) -> None:
        """Python's own handler: only if somebody else took the wake-up descriptor must it write the number itself."""
        descriptor = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        if descriptor != write.fileno():
            signal.set_wakeup_fd(descriptor)
            write.send(bytes([number]))

    descriptor = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, noticed) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)
        write.close()


def _read_signals(read: socket.socket, stop: Callable[[], None]) -> None:
    with read:
        while numbers := read.recv(64):
            for number in numbers:
                if number in SIGNALS:
                    stop()
