"""What does it cost to have a worker's jobs watched: hooks, OpenTelemetry, Prometheus, on `file:` and PostgreSQL?

Each variant drains the same no-op jobs, in a process of its own, one after the other in every round, each round in
another order; a variant's figure is the median of its ratios to the plain jobs of the same round. A ratio to one's own
plain jobs is what a user pays; no peer does the same for a job. An empty span for each job, a measurement, and both,
by the SDK and nothing else, show what of OpenTelemetry's price is not ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from statistics import median
from typing import Final, NamedTuple

from opentelemetry.context import Context as OtelContext
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, TraceIdRatioBased
from opentelemetry.trace import Link, SpanKind, Tracer, use_span

from benchmarks.children import child, new_url
from benchmarks.report import Bar, table
from leasemill import App, Context, JobEvent, Worker
from leasemill.api.observer import Observer, Settled
from leasemill.contrib.otel import instrument
from leasemill.kernel.commands import Lease
from leasemill.worker.prometheus.endpoint import Endpoint, parsed_address
from leasemill.worker.prometheus.measures import Measures
from leasemill.worker.prometheus.samples import exposition

ROUNDS: Final = 7
JOBS: Final = {"file": 20_000, "postgres": 40_000}
PLAIN: Final = "nothing"
HOOKS: Final = 0.7
"""What must be left of the plain rate: a call for each job takes some microseconds, a no-op job 12 to 35."""
ROOT: Final = OtelContext()


def around_sync(app: App) -> None:
    @app.around
    @contextmanager
    def around(ctx: Context) -> Iterator[None]:
        yield


def around_async(app: App) -> None:
    @app.around
    @asynccontextmanager
    async def around(ctx: Context) -> AsyncIterator[None]:
        yield


def on_success_sync(app: App) -> None:
    @app.on_success
    def on_success(event: JobEvent) -> None:
        pass


def on_success_async(app: App) -> None:
    @app.on_success
    async def on_success(event: JobEvent) -> None:
        pass


def both(app: App) -> None:
    around_sync(app)
    on_success_sync(app)


class Watching(Observer):
    """Wants to know of every job; methods that are not overridden are not called."""

    def run_started(self, lease: Lease, waited_s: float | None) -> None:
        pass

    def run_ended(self, lease: Lease, took_s: float) -> None:
        pass

    def settled(self, batch: Sequence[Settled], took_s: float) -> None:
        pass


def observer(app: App) -> None:
    app.observers.append(Watching())


def prometheus(app: App) -> None:
    """As `leasemill worker --metrics` does; written every second, fifteen times as often as is usual."""
    measures = Measures(app)
    app.observers.append(measures)
    Endpoint(parsed_address("0"), measures.all).start()

    def scrape() -> None:
        while True:
            exposition(measures.all())
            time.sleep(1)

    threading.Thread(target=scrape, daemon=True).start()


class Nowhere(SpanExporter):
    """What sending spans costs depends on where to."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def otel(sampler: Sampler) -> Callable[[App], None]:
    """Spans and metrics, by the SDK as programs use it: enqueues, claims, runs and reports."""

    def switch_on(app: App) -> None:
        tracers = TracerProvider(sampler)
        tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
        instrument(app, tracer_provider=tracers, meter_provider=MeterProvider([InMemoryMetricReader()]))

    return switch_on


def sdk_tracer() -> Tracer:
    tracers = TracerProvider(ALWAYS_ON)
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    return tracers.get_tracer("sdk")


def sdk_histogram() -> Histogram:
    return MeterProvider([InMemoryMetricReader()]).get_meter("sdk").create_histogram("process")


MEASURED: Final = {"system": "leasemill", "operation": "process", "destination": "default"}


def least(*, traces: bool, measures: bool) -> Callable[[App], None]:
    """The least that the SDK can do for a job: a span without attribute or link, which is not current for the handler,
    and the metric that the conventions require."""

    def switch_on(app: App) -> None:
        tracer = sdk_tracer() if traces else None
        histogram = sdk_histogram() if measures else None

        @app.around
        @contextmanager
        def around(ctx: Context) -> Iterator[None]:
            span = None if tracer is None else tracer.start_span("process", ROOT)
            yield
            if span is not None:
                span.end()
            if histogram is not None:
                histogram.record(0.001, MEASURED)

    return switch_on


def sdk_alone(app: App) -> None:
    """What the SDK itself takes for the span and the measurement of a job, with as many attributes and a link."""
    tracer, histogram = sdk_tracer(), sdk_histogram()
    made_by = tracer.start_span("send").get_span_context()

    @app.around
    @contextmanager
    def around(ctx: Context) -> Iterator[None]:
        attributes: dict[str, str | int] = {**MEASURED, "type": "process", "kind": ctx.kind, "id": ctx.job_id}
        attributes |= {"attempt": ctx.attempt, "fence": ctx.fence}
        span = tracer.start_span("process", ROOT, SpanKind.CONSUMER, attributes, (Link(made_by),))
        with use_span(span, end_on_exit=True):
            yield
        histogram.record(0.001, MEASURED)


class Drained(NamedTuple):
    a_second: float
    cpu_us: float


class Variant(NamedTuple):
    """What is switched on, and how much of the plain rate must be left; None: that is up to others' code."""

    switch_on: Callable[[App], object]
    bound: float | None


VARIANTS: Final = {
    PLAIN: Variant(lambda app: None, None),
    "an observer": Variant(observer, HOOKS),
    "Prometheus": Variant(prometheus, HOOKS),
    "around": Variant(around_sync, HOOKS),
    "around, async": Variant(around_async, HOOKS),
    "on_success": Variant(on_success_sync, HOOKS),
    "on_success, async": Variant(on_success_async, HOOKS),
    "around and on_success": Variant(both, HOOKS),
    "OpenTelemetry's SDK alone: an empty span": Variant(least(traces=True, measures=False), None),
    "OpenTelemetry's SDK alone: a measurement": Variant(least(traces=False, measures=True), None),
    "OpenTelemetry's SDK alone: an empty span and a measurement": Variant(least(traces=True, measures=True), None),
    "OpenTelemetry's SDK alone: a span as ours and a measurement": Variant(sdk_alone, None),
    "OpenTelemetry, every job": Variant(otel(ALWAYS_ON), None),
    "OpenTelemetry, one job in ten": Variant(otel(TraceIdRatioBased(0.1)), None),
}


def drained(url: str, variant: str, count: int) -> Drained:
    """Jobs a second, and the microseconds of CPU that the worker's process took for each."""
    app = App(url)

    @app.job
    async def noop(text: str) -> None:
        pass

    VARIANTS[variant].switch_on(app)
    noop.enqueue_many(noop.call("x" * 80) for _ in range(count))
    worker = Worker(app, drain=True, handle_signals=False)
    began, cpu = time.perf_counter(), time.process_time()
    worker.run_sync()
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert worker.metrics.succeeded == count, worker.metrics
    return Drained(count / took, 1e6 * cpu / count)


def rounds(store: str, names: list[str]) -> dict[str, list[Drained]]:
    """By variant, each round."""
    found: dict[str, list[Drained]] = {name: [] for name in names}
    with new_url(store) as url:
        for number in range(ROUNDS):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                found[name].append(child(drained, url(), name, JOBS[store]))
    return found


def measured(store: str) -> list[Bar]:
    found = rounds(store, list(VARIANTS))
    ratios = {
        name: median(one.a_second / plain.a_second for one, plain in zip(ones, found[PLAIN], strict=True))
        for name, ones in found.items()
    }
    cpu_us = {name: median(one.cpu_us for one in ones) for name, ones in found.items()}
    table(
        f"{store}: {JOBS[store]:,} no-op jobs drained, medians of {ROUNDS} rounds",
        ("switched on", "jobs/s", "of plain", "µs of CPU for each job", "more than plain"),
        [
            (
                name,
                f"{median(one.a_second for one in ones):,.0f}",
                f"{ratios[name]:.2f}",
                f"{cpu_us[name]:.1f}",
                f"{cpu_us[name] - cpu_us[PLAIN]:+.1f}",
            )
            for name, ones in found.items()
        ],
    )
    return [
        Bar(f"{store}: drain with {name}, of plain", ratios[name], variant.bound)
        for name, variant in VARIANTS.items()
        if variant.bound is not None
    ]
