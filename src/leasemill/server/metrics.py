"""The server's own figures, in the format of Prometheus; only where `prometheus-client` is installed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.store.base import Store

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0)
BOUNDS = (*map(str, BUCKETS_S), "+Inf")


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


class Answers:
    """Counted as simply as can be, for every request is, and made into metrics when they are asked for; on the server's
    event loop alone."""

    def __init__(self) -> None:
        self._by_status: dict[tuple[str, int], int] = {}
        self._seconds: dict[str, float] = {}
        self._in_buckets: dict[str, list[int]] = {}

    def add(self, verb: str, status: int, seconds: float) -> None:
        counted = self._by_status.get((verb, status))
        self._by_status[verb, status] = 1 if counted is None else counted + 1
        if verb not in self._seconds:
            self._seconds[verb], self._in_buckets[verb] = 0.0, [0] * (len(BUCKETS_S) + 1)
        self._seconds[verb] += seconds
        self._in_buckets[verb][bisect_left(BUCKETS_S, seconds)] += 1

    def collect(self) -> Iterator[Metric]:
        """As a registry asks for them."""
        from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily  # noqa: PLC0415

        requests = CounterMetricFamily("leasemill_server_requests", "Requests answered.", labels=["verb", "status"])
        for (verb, status), count in self._by_status.items():
            requests.add_metric([verb, str(status)], count)
        yield requests
        durations = HistogramMetricFamily(
            "leasemill_server_request_seconds", "How long requests took, waiting included.", labels=["verb"]
        )
        for verb, seconds in self._seconds.items():
            buckets = list(zip(BOUNDS, accumulate(self._in_buckets[verb]), strict=True))
            durations.add_metric([verb], buckets, seconds)
        yield durations


class PrometheusMetrics:
    """Requests by verb and status, how long they took, how many wait; the store's counts when they are asked for."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        import prometheus_client as p  # noqa: PLC0415  (an extra)

        self._registry: CollectorRegistry = p.CollectorRegistry()
        self._answers = Answers()
        self._registry.register(self._answers)
        self._polls = p.Gauge("leasemill_server_open_polls", "Calls that wait for something.", registry=self._registry)
        self._jobs = p.Gauge("leasemill_server_jobs", "Jobs in the store.", ["queue", "state"], registry=self._registry)

    def answered(self, verb: str, status: int, seconds: float) -> None:
        self._answers.add(verb, status, seconds)

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
