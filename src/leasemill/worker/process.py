"""A worker that is the whole of its process: signals stop it, and the process is gone by its limit, whatever runs.

A thread reads the signals, so a blocked event loop does not hide them; and when the time of the shutdown is over it
ends the process, whatever handlers, threads, child processes or the store do. What must never happen: this in a process
that is not the worker's alone. A program that runs a `Worker` itself decides for itself when it exits.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from leasemill.api.observer import Observer
from leasemill.kernel.commands import Lease
from leasemill.operator.wording import counted
from leasemill.worker.process_ends import EXIT_OVERRUN
from leasemill.worker.signals import stopped_by_signals
from leasemill.worker.worker import Worker

log = logging.getLogger("leasemill.worker")

LOOK_S: Final = 0.1
"""Between two looks at the memory: jobs may end a thousand times in a second."""
STATM: Final = Path("/proc/self/statm")
LAST_WORDS_S: Final = 0.2
"""How long the last log line may take: whoever reads the log may be stuck as well."""


def run_process(worker: Worker, close: Callable[[], None], on_signal: Callable[[], None]) -> None:
    """Run the worker until it is stopped, then `close`; from then on nothing keeps the process alive for long."""
    last_resort = LastResort(worker.id)
    worker.shutdown.on_planned = last_resort.arm
    try:
        with stopped_by_signals(on_signal):
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
        """End the process at this monotonic time if it is still there. May be called from any thread."""
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
        """Write the last line in a separate thread: a log that blocks must not keep the process."""
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


class Retirement(Observer):
    """Calls `on_enough` once, on the event loop, when a job has ended and a limit is reached."""

    def __init__(
        self,
        max_jobs: int | None,
        max_memory: int | None,
        *,
        memory_used: Callable[[], int] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_enough: Callable[[], None] = lambda: None
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._memory_used = memory_used or resident_bytes
        self._monotonic = monotonic
        self._jobs = 0
        self._looked_at: float | None = None
        self._has_enough = False

    def run_ended(self, lease: Lease, took_s: float) -> None:
        self._jobs += 1
        if not self._has_enough and (why := self._why()) is not None:
            self._has_enough = True
            log.info("this process is replaced: %s", why, extra={"worker": lease.worker})
            self.on_enough()

    def _why(self) -> str | None:
        if self._max_jobs is not None and self._jobs >= self._max_jobs:
            return f"it has run {counted(self._jobs, 'job')}"
        if self._max_memory is not None and self._is_time_to_look():
            used = self._memory_used()
            if used > self._max_memory:
                return f"it uses {used / 1e6:,.0f} MB of memory, more than {self._max_memory / 1e6:,.0f} MB"
        return None

    def _is_time_to_look(self) -> bool:
        now = self._monotonic()
        if self._looked_at is not None and now < self._looked_at + LOOK_S:
            return False
        self._looked_at = now
        return True


def resident_bytes() -> int:
    """The memory of this process that is in RAM now (RSS)."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
