"""`instrument`: what makes an app's jobs visible."""

from __future__ import annotations

from functools import partial

from opentelemetry import metrics, trace

import leasemill
from leasemill.api.app import App
from leasemill.contrib.otel.attempts import Attempt
from leasemill.contrib.otel.calls import TracedCalls
from leasemill.contrib.otel.conventions import SCHEMA_URL
from leasemill.contrib.otel.instruments import Instruments
from leasemill.contrib.otel.telemetry import Telemetry
from leasemill.contrib.otel.worker import WorkerSpans
from leasemill.errors import Invalid

NAME = "leasemill.contrib.otel"


def instrument(
    app: App,
    *,
    one_trace: bool = False,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Record the app's enqueues, and what workers do with its jobs. Once for an app, before its worker is made.

    `one_trace`: attempts are part of the trace that enqueued their job; by default each begins a trace of its own, with
    a link to the enqueue. `tracer_provider`, `meter_provider`: instead of the program's own.
    """
    if not isinstance(app, App):
        raise Invalid(f"instrument takes the leasemill.App, not {app!r}: write instrument(app)")
    if app.hooks.tracing is not None:
        raise Invalid("this app is instrumented already: call instrument(app) once, where the app is made")
    tracer = trace.get_tracer(NAME, leasemill.__version__, tracer_provider, SCHEMA_URL)
    meter = metrics.get_meter(NAME, leasemill.__version__, meter_provider, SCHEMA_URL)
    telemetry = Telemetry(tracer, Instruments(meter), one_trace=one_trace)
    app.hooks.tracing = TracedCalls(telemetry)
    app.hooks.around.insert(0, partial(Attempt, telemetry))  # the other hooks run inside the attempt's span
    app.observers.append(WorkerSpans(telemetry))
