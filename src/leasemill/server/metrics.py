"""The server's own figures, in the format of Prometheus; only where `prometheus-client` is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.store.base import Store

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0)


class ServerMetrics(Protocol):
    """Where the server counts."""

    def answered(self, verb: str, status: int, seconds: float) -> None: ...

    def watch_polls(self, count: Callable[[], int]) -> None: ...


class NoMetrics:
    """Counts nothing."""

    def answered(self, verb: str, status: int, seconds: float) -> None:
        pass

    def watch_polls(self, count: Callable[[], int]) -> None:
        pass


class PrometheusMetrics:
    """Requests by verb and status, how long they took, how many wait; the store's counts when they are asked for."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        import prometheus_client as p  # noqa: PLC0415  (an extra)

        self._registry: CollectorRegistry = p.CollectorRegistry()
        self._requests = p.Counter(
            "leasemill_server_requests", "Requests answered.", ["verb", "status"], registry=self._registry
        )
        self._seconds = p.Histogram(
            "leasemill_server_request_seconds",
            "How long requests took, waiting included.",
            ["verb"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._polls = p.Gauge("leasemill_server_open_polls", "Calls that wait for something.", registry=self._registry)
        self._jobs = p.Gauge("leasemill_server_jobs", "Jobs in the store.", ["queue", "state"], registry=self._registry)
        self._of_answers: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        """Found once: to find a metric by its labels takes longer than to count."""

    def answered(self, verb: str, status: int, seconds: float) -> None:
        found = self._of_answers.get((verb, status))
        if found is None:
            found = (self._requests.labels(verb, str(status)), self._seconds.labels(verb))
            self._of_answers[verb, status] = found
        requests, durations = found
        requests.inc()
        durations.observe(seconds)

    def watch_polls(self, count: Callable[[], int]) -> None:
        self._polls.set_function(count)

    async def page(self, store: Store) -> bytes:
        """Everything, as text."""
        from prometheus_client import generate_latest  # noqa: PLC0415

        self._jobs.clear()
        for queue in await store.arun(c.ListQueues(BATCH_ITEMS)):
            for state, count in queue.counts.items():
                self._jobs.labels(queue.name, state.value).set(count)
        return generate_latest(self._registry)
