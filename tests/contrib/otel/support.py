"""What was recorded: an SDK whose spans and measurements stay in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from leasemill import App
from leasemill.contrib.otel import instrument


class Recorded:
    """The telemetry of one test."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracer = self.tracer_provider.get_tracer("test")

    def instrument(self, app: App, *, one_trace: bool = False) -> None:
        instrument(app, one_trace=one_trace, tracer_provider=self.tracer_provider, meter_provider=self.meter_provider)

    def spans(self, name: str) -> list[ReadableSpan]:
        """In the order in which they ended."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]

    def points(self, name: str) -> list[Any]:
        """The data points of a metric."""
        data = self._reader.get_metrics_data()
        assert data is not None
        metrics = [it for of in data.resource_metrics for scope in of.scope_metrics for it in scope.metrics]
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]


def of(span: ReadableSpan, *names: str) -> list[Any]:
    """Attributes of a span."""
    assert span.attributes is not None
    return [span.attributes.get(name) for name in names]


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.trace_id
    return found


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert parent.context is not None
    return (
        span.parent is not None
        and (span.parent.trace_id, span.parent.span_id) == (parent.context.trace_id, parent.context.span_id)
        and trace_id(span) == parent.context.trace_id
    )


def linked(span: ReadableSpan) -> list[int]:
    """The spans it links to, by their id."""
    return [link.context.span_id for link in span.links]


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found
