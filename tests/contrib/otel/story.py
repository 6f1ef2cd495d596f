"""One trace: a request enqueues a job, the worker of its first attempt is killed, another one commits it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from leasemill import JobState, open_store
from tests.contrib.otel import shop
from tests.lab.processes import IMPORT_PATH, WorkerProcess, wait_until


@dataclass(frozen=True)
class Collected:
    """A span, whichever process recorded it."""

    name: str
    process: str
    trace: str
    id: str
    parent: str | None
    links: tuple[str, ...]
    attributes: dict[str, Any]

    @classmethod
    def read(cls, text: str, process: str) -> Self:
        it = msgspec.json.decode(text)
        context, links = it["context"], tuple(link["context"]["span_id"] for link in it["links"])
        return cls(
            it["name"], process, context["trace_id"], context["span_id"], it["parent_id"], links, it["attributes"]
        )


async def collected(url: str, folder: Path) -> list[Collected]:
    """The spans of the request, of the worker that is killed and of the one that commits."""
    exporter = InMemorySpanExporter()
    shop.provider.add_span_processor(SimpleSpanProcessor(exporter))
    web = shop.make_web()
    FastAPIInstrumentor.instrument_app(web, tracer_provider=shop.provider)
    try:
        with open_store(url) as store, shop.jobs.bound_to(store):
            spans = await _through_two_workers(web, url, folder)
    finally:
        FastAPIInstrumentor.uninstrument_app(web)
        exporter.shutdown()
    return [*(Collected.read(span.to_json(), "web") for span in exporter.get_finished_spans()), *spans]


async def _through_two_workers(web: FastAPI, url: str, folder: Path) -> list[Collected]:
    transport = httpx.ASGITransport(web)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        answer = await client.post("/orders/7")
    handle = shop.jobs.handle(answer.json()["job"])
    with _worker("killed", url, folder) as killed:

        def is_under_way() -> bool:
            killed.check_running()
            has_started = any(one.started_at is not None for one in handle.record().executions)
            return has_started and any(span.name == "reserve" for span in _spans(folder, "killed"))

        wait_until(is_under_way, "the first attempt to be under way")
        killed.kill()
    with _worker("second", url, folder) as second:
        receipt = shop.jobs.handle(f"{handle.id}/0")
        wait_until(lambda: _has_succeeded(second, handle) and _has_succeeded(second, receipt), "the second attempt")
        assert second.end() == 0
    return [*_spans(folder, "killed"), *_spans(folder, "second")]


def _has_succeeded(worker: WorkerProcess, handle: Any) -> bool:
    worker.check_running()
    return bool(handle.status() is JobState.SUCCEEDED)


def _worker(name: str, url: str, folder: Path) -> WorkerProcess:
    return WorkerProcess(
        "tests.contrib.otel.shop:jobs",
        url=url,
        log=folder / f"{name}.log",
        worker_id=name,
        folder=folder,
        environment={"PYTHONPATH": IMPORT_PATH, shop.SPANS_VARIABLE: str(folder / f"{name}.spans")},
    )


def _spans(folder: Path, name: str) -> list[Collected]:
    path = folder / f"{name}.spans"
    lines = path.read_text().splitlines() if path.exists() else []
    return [Collected.read(line, name) for line in lines]


def check_one_trace(spans: list[Collected]) -> None:
    """From the request through the enqueue and a killed attempt to the commit, and to what the commit enqueued."""
    request = _one(spans, "POST /orders/{order}", "web")
    send = _one(spans, "send orders", "web")
    cut_short = _one(spans, "reserve", "killed")
    process, reserve, commit = (_one(spans, name, "second") for name in ("process orders", "reserve", "commit orders"))
    receipt = _one(spans, "process mail", "second")

    assert {it.trace for it in (send, cut_short, process, reserve, commit, receipt)} == {request.trace}
    assert (request.parent, send.parent, process.parent) == (None, request.id, send.id)
    # Reported alone it belongs to the trace; reported together with the receipt, it links to both.
    (settle,) = [it for it in spans if it.process == "second" and it.name.startswith("settle") and send.id in it.links]
    if settle.name == "settle orders":
        assert (settle.trace, settle.parent) == (request.trace, send.id)
    else:
        assert (settle.name, settle.parent, set(settle.links)) == ("settle", None, {send.id, receipt.parent})
    assert (reserve.parent, commit.parent, receipt.parent) == (process.id, process.id, process.id)
    # The attempt that was killed never ended, so its own span is nowhere: what had ended below it is there.
    assert [it.name for it in spans if it.process == "killed"] in (["receive orders", "reserve"], ["reserve"])
    assert cut_short.parent not in {it.id for it in spans}
    assert [process.attributes[f"leasemill.{name}"] for name in ("attempt", "expirations")] == [2, 1]
    assert commit.attributes["leasemill.fence"] == process.attributes["leasemill.fence"]


def _one(spans: list[Collected], name: str, process: str) -> Collected:
    (found,) = [span for span in spans if (span.name, span.process) == (name, process)]
    return found
