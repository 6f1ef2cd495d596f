"""Spans of a worker's own calls, and the metrics."""

from __future__ import annotations

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from leasemill import App, Context, Retry, Unavailable
from leasemill.kernel import commands as c
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import adrain
from tests.contrib.otel.support import Recorded, linked, of, span_id
from tests.worker.support import FaultyStore, drained, until, working


async def test_a_claim_and_the_reports_are_spans(app: App, recorded: Recorded) -> None:
    @app.job(queue="mail")
    async def run() -> None: ...

    handle = run.enqueue()
    worker = await drained(app)
    send = recorded.span("send mail")
    for name, operation in (("receive mail", "receive"), ("settle mail", "settle")):
        span = recorded.span(name)
        assert span.kind is SpanKind.CLIENT
        assert span.parent is None
        assert linked(span) == [span_id(send)]
        assert of(span, "messaging.system", "messaging.operation.name", "messaging.operation.type") == [
            "leasemill",
            operation,
            operation,
        ]
        assert of(span, "messaging.client.id", "messaging.message.id") == [worker.id, handle.id]
        assert of(span, "messaging.batch.message_count", "leasemill.attempt") == [None, 1]
    assert of(recorded.span("settle mail"), "leasemill.outcome") == ["succeeded"]


async def test_many_jobs_are_one_span_with_a_link_for_each_enqueue(app: App, recorded: Recorded) -> None:
    @app.job(queue="a")
    async def one(number: int) -> None: ...

    @app.job(queue="b")
    async def other(number: int) -> None: ...

    one.enqueue_many(one.call(number) for number in range(4))
    other.enqueue(1)
    await drained(app)
    sends = {span_id(span) for name in ("send a", "send b") for span in recorded.spans(name)}
    receives = [span for name in recorded.names() if name.startswith("receive") for span in recorded.spans(name)]
    assert {context for span in receives for context in linked(span)} == sends
    assert all(len(span.links) <= 2 for span in receives)
    batched = [span for span in receives if of(span, "messaging.batch.message_count")[0] is not None]
    assert batched
    assert all(of(span, "messaging.message.id") == [None] for span in batched)


async def test_what_became_of_a_report_is_an_event(app: App, clock: ManualClock, recorded: Recorded) -> None:
    @app.job(retry=Retry(1))
    async def run(ctx: Context) -> None:
        raise ValueError("no\nreally")

    handle = run.enqueue()
    await adrain(app, clock)
    retried, failed = recorded.spans("settle default")
    assert [of(span, "leasemill.outcome")[0] for span in (retried, failed)] == ["retried", "failed"]
    assert [event.name for span in (retried, failed) for event in span.events] == [
        "leasemill.retried",
        "leasemill.failed",
    ]
    attributes = dict(retried.events[0].attributes or {})
    assert "\n" not in str(attributes.pop("leasemill.reason"))
    assert attributes == {"messaging.message.id": handle.id, "leasemill.job.kind": "run", "leasemill.attempt": 1}
    assert {span.status.status_code for span in (retried, failed)} == {StatusCode.UNSET}


async def test_a_refused_report_is_an_event_and_not_an_error(
    app: App, store: FaultyStore, clock: ManualClock, recorded: Recorded
) -> None:
    @app.job
    async def run(ctx: Context) -> None:
        if ctx.attempt == 1:
            clock.advance(s=3_600)
            store.expire(10)

    run.enqueue()
    await adrain(app, clock)
    refused = recorded.spans("settle default")[0]
    assert of(refused, "leasemill.outcome", "error.type") == ["refused", None]
    assert [event.name for event in refused.events] == ["leasemill.refused"]
    assert refused.status.status_code is StatusCode.UNSET


async def test_a_claim_that_granted_nothing_is_no_span(app: App, recorded: Recorded) -> None:
    @app.job
    async def run() -> None: ...

    await drained(app)
    assert recorded.names() == []


async def test_what_is_counted_and_measured(
    app: App, store: FaultyStore, clock: ManualClock, recorded: Recorded
) -> None:
    @app.job(retry=Retry(1))
    async def run(number: int) -> None:
        if number == 0:
            raise ValueError

    run.enqueue_many(run.call(number) for number in range(3))
    store.fail(c.Enqueue, "before")
    with pytest.raises(Unavailable):
        run.enqueue(9)
    await adrain(app, clock)

    def count(name: str) -> dict[str | None, float]:
        found: dict[str | None, float] = {}
        for point in recorded.points(name):
            assert point.attributes["messaging.system"] == "leasemill"
            assert point.attributes["messaging.destination.name"] == "default"
            found[point.attributes.get("error.type")] = point.value if hasattr(point, "value") else point.count
        return found

    assert count("messaging.client.sent.messages") == {None: 3, "leasemill.Unavailable": 1}
    assert count("messaging.client.consumed.messages") == {None: 4}
    assert count("messaging.process.duration") == {None: 2, "ValueError": 2}
    operations = {
        (point.attributes["messaging.operation.name"], point.attributes.get("error.type"))
        for point in recorded.points("messaging.client.operation.duration")
    }
    assert operations == {("send", None), ("send", "leasemill.Unavailable"), ("receive", None), ("settle", None)}
    (point,) = [it for it in recorded.points("messaging.process.duration") if "error.type" not in it.attributes]
    assert point.explicit_bounds[0] == 0.005
    assert "leasemill.job.kind" not in point.attributes
    assert "messaging.operation.type" not in point.attributes


async def test_workers_and_their_reapers_are_measured(
    app: App, store: FaultyStore, clock: ManualClock, recorded: Recorded
) -> None:
    @app.job
    async def run() -> None: ...

    run.enqueue()
    store.claim("gone", ["default"], 1)
    clock.advance(s=33)
    async with working(app, worker_id="orders-1"):
        await until(lambda: recorded.points("leasemill.reaper.recovered.count"), "a run of the reaper")
        (info,) = recorded.points("leasemill.worker.info")
        assert (info.value, dict(info.attributes)) == (1, {"service.instance.id": "orders-1"})
    (stale,) = recorded.points("leasemill.reaper.stale.duration")
    assert (stale.count, stale.sum) == (1, 3)
    (recovered,) = recorded.points("leasemill.reaper.recovered.count")
    assert dict(recovered.attributes) == {"service.instance.id": "orders-1"}
    (runs,) = recorded.points("leasemill.reaper.runs")
    assert runs.value == recovered.count
    assert recorded.points("leasemill.worker.info") == []
