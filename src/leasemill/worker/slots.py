"""What a worker holds: jobs that run in its slots, jobs that wait for one, handlers that do not return."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from leasemill.worker.metrics import Metrics
from leasemill.worker.prefetch import Prefetch
from leasemill.worker.run import Phase, Run


class Slots:
    """Changed on the event loop. A slot is free again when its handler has really ended."""

    def __init__(self, size: int, metrics: Metrics) -> None:
        self.size = size
        self.active: dict[str, Run] = {}
        """Every run whose handler has a slot, by token."""
        self.queued: deque[Run] = deque()
        self.prefetch = Prefetch()
        self.left: dict[str, Run] = {}
        """Runs whose handler has not returned although their job is over here, by job id. They keep their slots."""
        self._metrics = metrics
        self._emptied: asyncio.Future[None] | None = None
        self._changed = asyncio.Event()

    def running(self) -> list[Run]:
        """A copy of the active ones, for any thread."""
        return list(self.active.values())

    @property
    def stuck(self) -> int:
        return sum(run.is_stuck for run in self.active.values())

    @property
    def holds_leases(self) -> bool:
        """Some job is not released, because its handler has not ended."""
        return any(run.phase is Phase.RUNNING or run.is_given_back_at_end for run in self.active.values())

    @property
    def is_idle(self) -> bool:
        """Nothing is left to run or to wait for."""
        return not self.queued and self.stuck == len(self.active)

    async def emptied(self) -> None:
        """Wait until no handler is running but those that are stuck."""
        while self.stuck < len(self.active):
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    async def without_processes(self, until: float) -> None:
        """Wait until no handler is in a process of its own, until then on the monotonic clock."""
        while any(run.process is not None for run in self.active.values()):
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.0, until - time.monotonic()))
            except TimeoutError:
                return

    def changed(self) -> None:
        """Call this after a change: keeps the counters, and wakes who waits for the slots to be empty."""
        metrics = self._metrics
        metrics.running, metrics.queued, metrics.stuck = len(self.active), len(self.queued), len(self.left)
        self._changed.set()
        if self._emptied is not None and not self._emptied.done() and self.stuck == len(self.active):
            self._emptied.set_result(None)
