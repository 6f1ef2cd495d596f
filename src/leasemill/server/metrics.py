"""The server's own metrics: requests, how long they took, calls that wait, and the jobs of the store.

They are written as the workers' are (`worker/prometheus`), so `/metrics` needs no package but the server's. Requests
are counted on the server's event loop alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.store.base import Store
from leasemill.worker.prometheus.catalogue import Metric
from leasemill.worker.prometheus.samples import Samples, exposition

DURATION_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0)

REQUESTS: Final = Metric("leasemill_server_requests_total", "counter", "Requests answered.", ("verb", "status"))
DURATION: Final = Metric(
    "leasemill_server_request_seconds", "histogram", "How long requests took, waiting included.", ("verb",), DURATION_S
)
OPEN_POLLS: Final = Metric("leasemill_server_open_polls", "gauge", "Calls that wait for something.")
STORE_JOBS: Final = Metric("leasemill_server_jobs", "gauge", "Jobs in the store.", ("queue", "state"))
EXPORTED: Final = (REQUESTS, DURATION, OPEN_POLLS, STORE_JOBS)


class ServerMetrics:
    """Counts the requests of one server. The other metrics are read for each scrape."""

    def __init__(self, open_polls: Callable[[], int]) -> None:
        self._requests = Samples()
        self._open_polls = open_polls

    def answered(self, verb: str, status: int, seconds: float) -> None:
        self._requests.add(REQUESTS, (verb, str(status)))
        self._requests.observe(DURATION, (verb,), seconds)

    async def exposition(self, store: Store) -> str:
        """Write every metric in Prometheus's format. Unlike a worker's, the queues are not bounded in number."""
        found = Samples({**self._requests.values}, self._requests.histograms)
        found.add(OPEN_POLLS, by=self._open_polls())
        found.values[STORE_JOBS.name] = {
            (queue.name, state.value): count
            for queue in await store.arun(c.ListQueues(BATCH_ITEMS))
            for state, count in queue.counts.items()
        }
        return exposition(found, EXPORTED)
