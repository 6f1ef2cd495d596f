"""A span around each attempt: where it belongs, what is below it, how it ends."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from leasemill import App, Context, Fail, JobState, Limit, Release, Retry, RetryAfter, Throttled
from leasemill.kernel import commands as c
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import adrain
from tests.contrib.otel.support import Recorded, is_child, linked, of, span_id, trace_id
from tests.worker.support import FaultyStore, drained, until, working


@pytest.mark.parametrize("is_async", [True, False])
async def test_spans_of_a_handler_and_of_hooks_are_below_the_attempt(
    app: App, recorded: Recorded, is_async: bool
) -> None:
    @app.around
    @contextmanager
    def around(ctx: Context) -> Iterator[None]:
        with recorded.tracer.start_as_current_span("hook"):
            yield

    @app.job(name="async")
    async def run_async() -> None:
        with recorded.tracer.start_as_current_span("work"):
            await asyncio.sleep(0)
            await asyncio.to_thread(lambda: recorded.tracer.start_span("thread").end())

    @app.job(name="sync")
    def run_sync() -> None:
        with recorded.tracer.start_as_current_span("work"):
            context = contextvars.copy_context()
            context.run(lambda: recorded.tracer.start_span("thread").end())

    with recorded.tracer.start_as_current_span("whoever runs the worker"):
        handle = (run_async if is_async else run_sync).options(lane="l").enqueue()
        await drained(app)
    process, send = recorded.span("process default"), recorded.span("send default")
    assert process.kind is SpanKind.CONSUMER
    assert process.parent is None
    assert trace_id(process) != trace_id(send)
    assert linked(process) == [span_id(send)]
    assert is_child(recorded.span("hook"), process)
    assert is_child(recorded.span("work"), recorded.span("hook"))
    assert is_child(recorded.span("thread"), recorded.span("work"))
    assert of(process, "messaging.system", "messaging.operation.name", "messaging.operation.type") == [
        "leasemill",
        "process",
        "process",
    ]
    assert of(process, "messaging.destination.name", "messaging.message.id") == ["default", handle.id]
    assert of(process, "leasemill.job.kind", "leasemill.attempt", "leasemill.lane", "leasemill.outcome") == [
        "async" if is_async else "sync",
        1,
        "l",
        "succeeded",
    ]
    assert of(process, "leasemill.fence")[0] >= 1
    assert (process.status.status_code, process.events) == (StatusCode.UNSET, ())
    assert trace.get_current_span().get_span_context().is_valid is False


async def test_attempts_beside_each_other_do_not_mix(app: App, recorded: Recorded) -> None:
    @app.job(name="async")
    async def run_async(number: int) -> None:
        await asyncio.sleep(0.001 * (number % 3))
        recorded.tracer.start_span(f"work {number}").end()

    @app.job(name="sync")
    def run_sync(number: int) -> None:
        recorded.tracer.start_span(f"work {number}").end()

    app.enqueue_many(
        job.options(job_id=str(number)).call(number)
        for number, job in enumerate([run_async, run_sync, run_async, run_sync, run_async, run_sync])
    )
    await drained(app)
    for process in recorded.spans("process default"):
        (job_id,) = of(process, "messaging.message.id")
        assert is_child(recorded.span(f"work {job_id}"), process)


@pytest.mark.parametrize("one_trace", [True, False])
async def test_each_attempt_of_a_retried_job_comes_from_its_enqueue(
    store: FaultyStore, clock: ManualClock, recorded: Recorded, one_trace: bool
) -> None:
    app = App(store=store)
    recorded.instrument(app, one_trace=one_trace)

    @app.job(retry=Retry(2))
    async def run(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ValueError("not yet")

    with recorded.tracer.start_as_current_span("request"):
        run.enqueue()
    await adrain(app, clock)
    send, attempts = recorded.span("send default"), recorded.spans("process default")
    assert [of(span, "leasemill.attempt", "leasemill.outcome", "error.type") for span in attempts] == [
        [1, "failed", "ValueError"],
        [2, "failed", "ValueError"],
        [3, "succeeded", None],
    ]
    assert [linked(span) for span in attempts] == [[span_id(send)]] * 3
    if one_trace:
        assert all(is_child(span, send) for span in attempts)  # none is a child of the attempt before it
        assert all(is_child(span, send) for span in recorded.spans("settle default"))
        assert all(is_child(span, send) for span in recorded.spans("receive default"))
    else:
        assert len({trace_id(span) for span in attempts} | {trace_id(send)}) == 4


async def test_a_failure_has_its_error(app: App, recorded: Recorded) -> None:
    class Declined(Exception):
        pass

    @app.job(name="raises", retry=0)
    async def raises() -> None:
        raise Declined("no money")

    @app.job(name="fails")
    async def fails() -> None:
        raise Fail("never")

    @app.job(name="wraps")
    def wraps() -> None:
        raise RetryAfter(60, "later") from ConnectionError("reset")

    for job in (raises, fails, wraps):
        job.enqueue()
    await drained(app, concurrency=1)
    by_kind = {of(span, "leasemill.job.kind")[0]: span for span in recorded.spans("process default")}
    own = f"{__name__}.test_a_failure_has_its_error.<locals>.Declined"
    assert {kind: of(span, "leasemill.outcome", "error.type") for kind, span in by_kind.items()} == {
        "raises": ["failed", own],
        "fails": ["failed", "leasemill.Fail"],
        "wraps": ["failed", "ConnectionError"],
    }
    for span, text in ((by_kind["raises"], "no money"), (by_kind["fails"], "never"), (by_kind["wraps"], "reset")):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, text)
        (event,) = span.events
        assert event.name == "exception"
        assert (event.attributes or {})["exception.message"] == text


async def test_a_job_given_back_has_not_failed(app: App, recorded: Recorded) -> None:
    @app.job(name="released")
    async def released() -> None:
        raise Release(3_600)

    @app.job(name="throttled", limit=Limit(5, name="api"))
    def throttled() -> None:
        raise Throttled("api", 3_600)

    for job in (released, throttled):
        job.enqueue()
    await drained(app)
    for span in recorded.spans("process default"):
        assert of(span, "leasemill.outcome", "error.type") == ["released", None]
        assert (span.status.status_code, span.events) == (StatusCode.UNSET, ())


async def test_a_handler_that_outlived_its_timeout_has_failed(app: App, recorded: Recorded) -> None:
    @app.job(name="async", retry=0, timeout=0.05)
    async def run_async() -> None:
        await asyncio.sleep(3_600)

    handle = run_async.enqueue()
    await drained(app)
    assert handle.status() is JobState.FAILED
    span = recorded.span("process default")
    assert of(span, "leasemill.outcome", "error.type") == ["timed_out", "TimeoutError"]
    assert span.status.status_code is StatusCode.ERROR


async def test_a_handler_cut_short_by_a_shutdown_has_not_failed(app: App, recorded: Recorded) -> None:
    running = asyncio.Event()

    @app.job
    async def run() -> None:
        running.set()
        await asyncio.sleep(3_600)

    run.enqueue()
    async with working(app, shutdown_timeout=0.2) as worker:
        await running.wait()
        worker.stop()
        await until(lambda: recorded.spans("process default"), "the handler to be stopped")
    span = recorded.span("process default")
    assert of(span, "leasemill.outcome", "error.type") == ["released", None]
    assert span.status.status_code is StatusCode.UNSET


async def test_a_lost_lease_is_an_event_and_the_next_attempt_counts_it(
    app: App, store: FaultyStore, clock: ManualClock, recorded: Recorded
) -> None:
    @app.job
    async def run(ctx: Context) -> None:
        if ctx.attempt == 1:
            store.start([c.StartReport(ctx.job_id, ctx.token)])
            clock.advance(s=3_600)
            store.expire(10)
            ctx.lost.set("expired")

    run.enqueue()
    await adrain(app, clock)
    lost, again = recorded.spans("process default")
    assert [(event.name, dict(event.attributes or {})) for event in lost.events] == [
        ("leasemill.lost", {"leasemill.reason": "expired"})
    ]
    assert of(lost, "leasemill.outcome", "leasemill.expirations", "error.type") == ["lost", None, None]
    assert lost.status.status_code is StatusCode.UNSET
    assert of(again, "leasemill.attempt", "leasemill.expirations", "leasemill.outcome") == [2, 1, "succeeded"]


async def test_an_attempt_of_a_job_without_a_context_is_a_root_without_links(
    store: FaultyStore, recorded: Recorded
) -> None:
    app, plain = App(store=store), App(store=store)
    recorded.instrument(app, one_trace=True)

    @app.job
    async def run() -> None: ...

    plain.enqueue("run", queue="default")
    plain.named("run", queue="default").options(headers={"traceparent": "nonsense"}).enqueue()
    await drained(app)
    for span in recorded.spans("process default"):
        assert (span.parent, span.links) == (None, ())
