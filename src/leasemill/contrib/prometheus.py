"""A worker's metrics in a registry of prometheus_client, for programs that run a worker themselves.

    from leasemill.contrib.prometheus import export

    export(app)

`leasemill worker --metrics` needs none of this, nor the package. What is exported is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import assert_never

try:
    from prometheus_client import REGISTRY, CollectorRegistry
except ImportError as error:
    raise ImportError(
        "leasemill.contrib.prometheus needs prometheus-client: pip install 'leasemill[prometheus]'"
    ) from error
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from leasemill.api.app import App
from leasemill.errors import Invalid
from leasemill.worker.prometheus.catalogue import METRICS
from leasemill.worker.prometheus.measures import Measures
from leasemill.worker.prometheus.samples import Samples

__all__ = ["export"]


def export(app: App, registry: CollectorRegistry = REGISTRY) -> None:
    """Put the metrics of the app's workers into a registry. Call it once for an app, before its worker is created."""
    if not isinstance(app, App):
        raise Invalid(f"export takes the leasemill.App, not {app!r}: write export(app)")
    if any(isinstance(observer, Measures) for observer in app.observers):
        raise Invalid("the metrics of this app are exported already: call export(app) once, where the app is made")
    measures = Measures(app)
    registry.register(_Exported(measures))
    app.observers.append(measures)


class _Exported(Collector):
    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def describe(self) -> Iterator[Metric]:
        """Describe the metrics, so that a registry finds two collectors with one name without collecting."""
        return families(Samples())

    def collect(self) -> Iterator[Metric]:
        return families(self._measures.all())


def families(samples: Samples) -> Iterator[Metric]:
    for metric in METRICS.values():
        values = samples.values.get(metric.name, {})
        match metric.type:
            case "counter":
                counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, value in sorted(values.items()):
                    counter.add_metric(labels, value)
                yield counter
            case "gauge":
                gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, value in sorted(values.items()):
                    gauge.add_metric(labels, value)
                yield gauge
            case "histogram":
                histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, (*counts, total) in sorted(samples.histograms.get(metric.name, {}).items()):
                    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
                    buckets = list(zip(bounds, accumulate(counts), strict=True))
                    histogram.add_metric(labels, buckets, total)
                yield histogram
            case _:
                assert_never(metric.type)
