"""A shop whose requests enqueue a charge; the worker's SDK writes each span to a file as soon as it has ended.

What a killed process had not ended is lost, as with every exporter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from leasemill import App, Context
from leasemill.contrib.otel import instrument

SPANS_VARIABLE = "SHOP_SPANS"
"""The file of a worker's spans; in the web process there is none."""


class ToFile(SpanExporter):
    """One line of JSON for each span."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.writelines(f"{span.to_json(indent=None)}\n" for span in spans)
        return SpanExportResult.SUCCESS


provider = TracerProvider(shutdown_on_exit=False)
if SPANS_VARIABLE in os.environ:
    provider.add_span_processor(SimpleSpanProcessor(ToFile(Path(os.environ[SPANS_VARIABLE]))))
tracer = provider.get_tracer("shop")

jobs = App()
instrument(jobs, one_trace=True, tracer_provider=provider)


@jobs.job(queue="mail")
def receipt(order: str) -> None:
    """A follow-up of the charge."""


@jobs.job(queue="orders")
def charge(ctx: Context, order: str) -> None:
    with tracer.start_as_current_span("reserve"):
        pass
    if ctx.attempt == 1:
        time.sleep(3_600)  # until it is killed
    with ctx.commit() as tx:
        tx.enqueue(receipt, order)


def make_web() -> FastAPI:
    web = FastAPI()

    @web.post("/orders/{order}", status_code=202)
    async def place(order: str) -> dict[str, str]:
        handle = await charge.aenqueue(order)
        return {"job": handle.id}

    return web
