"""The metrics of all processes of a worker, behind one endpoint.

Processes send what they counted since the last time, when they are asked and when they end, and it is added up here:
what a process counted stays when it is replaced. What is so now (slots, leases, the queues' jobs) is a process's own,
and goes with it: when it has ended, or has not answered for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leasemill import __version__
from leasemill.worker.prometheus.catalogue import INFO, PROCESS_DEATHS, PROCESSES, QUEUES_ELECTED
from leasemill.worker.prometheus.samples import Samples, decoded
from leasemill.worker.supervisor.channel import Message
from leasemill.worker.supervisor.child import Child

ASK_S: Final = 1.0
SILENT_S: Final = 10.0
"""A process that has not answered for so long is stopped, or stuck: what it reported of itself may not be so now."""


@dataclass(slots=True)
class _Process:
    """`asked_at`: None while no answer is waited for. Times are monotonic."""

    asked_at: float | None = None
    ask_at: float = 0.0
    gauges: Samples | None = None
    gauges_until: float = 0.0
    queues: Samples | None = None
    queues_until: float = 0.0


class MetricsAggregator:
    """Changed in the supervisor's loop, read in the endpoint's threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._counters = Samples()
        self._counters.add(PROCESS_DEATHS, by=0)
        self._processes: dict[Child, _Process] = {}

    def ask(self, child: Child) -> None:
        """Ask a process for its metrics, once a second at most.

        Only one question waits for an answer at a time, so a process that is stopped piles up none.
        """
        now = self._monotonic()
        with self._lock:
            process = self._processes.setdefault(child, _Process())
        if process.asked_at is None and now >= process.ask_at:
            process.asked_at, process.ask_at = now, now + ASK_S
            child.send({"do": "samples"})

    def received(self, child: Child, message: Message) -> None:
        now = self._monotonic()
        with self._lock:
            self._counters.merge(decoded(message["counters"]))
            process = self._processes.setdefault(child, _Process())
            process.asked_at = None
            process.gauges, process.gauges_until = decoded(message["gauges"]), now + SILENT_S
            process.queues, process.queues_until = decoded(message["queues"]), now + message["queues_for_s"]

    def ended(self, child: Child, *, is_death: bool) -> None:
        with self._lock:
            self._processes.pop(child, None)
            self._counters.add(PROCESS_DEATHS, by=int(is_death))

    def all(self) -> Samples:
        now = self._monotonic()
        with self._lock:
            found = self._counters.copy()
            for process in self._processes.values():
                if process.gauges is not None and now < process.gauges_until:
                    found.merge(process.gauges)
                if process.queues is not None and now < process.queues_until:
                    found.merge(process.queues)
            found.add(QUEUES_ELECTED, by=0)
            found.add(PROCESSES, by=len(self._processes))
        found.add(INFO, (__version__,))
        return found
