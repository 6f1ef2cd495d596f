"""When a worker's process has done as much as it may: --max-jobs, --max-memory. Looked at between jobs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from leasemill.api.observer import Observer
from leasemill.kernel.commands import Lease
from leasemill.operator.wording import counted

log = logging.getLogger("leasemill.worker")

LOOK_S: Final = 0.1
"""Between two looks at the memory: jobs may end a thousand times in a second."""
STATM: Final = Path("/proc/self/statm")


class Recycling(Observer):
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
