"""Spans around an enqueue and a commit, and the context that travels with the jobs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from leasemill import App, Context, JobConflict, Unavailable, Unique, chain
from leasemill.contrib.otel.carrier import creation
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import HEADERS_LENGTH
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import adrain
from tests.contrib.otel.support import Recorded, is_child, linked, of, span_id, trace_id
from tests.worker.support import FaultyStore

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def context_of(app: App, job_id: str) -> int | None:
    """The span whose context travels with a job."""
    found = creation(app.handle(job_id).record().spec.headers)
    return None if found is None else found.span_id


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_enqueue_is_a_span_whose_context_travels(app: App, recorded: Recorded, is_async: bool) -> None:
    @app.job(queue="mail", lane="to")
    async def send(to: str) -> None: ...

    with recorded.tracer.start_as_current_span("request"):
        handle = await send.aenqueue("ann") if is_async else send.enqueue("ann")
    span = recorded.span("send mail")
    assert span.kind is SpanKind.PRODUCER
    assert is_child(span, recorded.span("request"))
    assert of(span, "messaging.system", "messaging.operation.name", "messaging.operation.type") == [
        "leasemill",
        "send",
        "send",
    ]
    assert of(span, "messaging.destination.name", "messaging.message.id") == ["mail", handle.id]
    assert of(span, "leasemill.job.kind", "leasemill.lane") == ["send", "ann"]
    assert context_of(app, handle.id) == span_id(span)


async def test_a_batch_is_one_span(app: App, recorded: Recorded) -> None:
    @app.job(queue="a")
    async def one(number: int) -> None: ...

    @app.job(queue="b")
    async def other(number: int) -> None: ...

    handles = one.enqueue_many(one.call(number) for number in range(3))
    span = recorded.span("send a")
    assert of(span, "messaging.batch.message_count", "messaging.message.id", "leasemill.job.kind") == [3, None, "one"]
    assert {context_of(app, handle.id) for handle in handles} == {span_id(span)}

    app.enqueue_stream([one.call(1), other.call(1)])
    mixed = recorded.span("send")
    assert of(mixed, "messaging.batch.message_count", "messaging.destination.name", "leasemill.job.kind") == [
        2,
        None,
        None,
    ]
    await app.aenqueue_stream([one.call(2)])
    assert len(recorded.spans("send a")) == 2


async def test_a_context_that_the_caller_gave_stays(app: App, recorded: Recorded) -> None:
    @app.job
    async def run() -> None: ...

    handle = run.options(headers={"traceparent": GIVEN, "tenant": "acme"}).enqueue()
    span = recorded.span("send default")
    assert handle.record().spec.headers == {"traceparent": GIVEN, "tenant": "acme"}
    assert span.kind is SpanKind.CLIENT
    assert linked(span) == [0xB7AD6B7169203331]


async def test_headers_of_the_caller_stay_and_a_trace_without_room_is_left_out(app: App, recorded: Recorded) -> None:
    @app.job
    async def run() -> None: ...

    headers = run.options(headers={"tenant": "acme"}).enqueue().record().spec.headers
    assert headers is not None
    assert sorted(headers) == ["tenant", "traceparent"]
    full = {"note": "x" * (HEADERS_LENGTH - 10)}
    assert run.options(headers=full).enqueue().record().spec.headers == full
    assert len(recorded.spans("send default")) == 2


async def test_an_enqueue_that_made_no_job_shows_which_one_it_met(app: App, recorded: Recorded) -> None:
    @app.job(unique=Unique())
    async def run(number: int) -> None: ...

    first = run.enqueue(1)
    run.enqueue(1)
    run.options(job_id="x").enqueue(2)
    run.options(job_id="x").enqueue(2)
    with pytest.raises(JobConflict):
        run.options(job_id="x").enqueue(3)
    _, merged, _, duplicate, conflict = recorded.spans("send default")
    assert of(merged, "leasemill.outcome", "messaging.message.id") == ["merged", first.id]
    assert of(duplicate, "leasemill.outcome", "messaging.message.id") == ["duplicate", "x"]
    assert of(conflict, "leasemill.outcome", "error.type") == ["conflict", "leasemill.JobConflict"]
    assert (duplicate.status.status_code, conflict.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)


async def test_an_enqueue_that_failed_is_an_error(app: App, store: FaultyStore, recorded: Recorded) -> None:
    @app.job
    async def run() -> None: ...

    store.fail(c.Enqueue, "before")
    call = run.call()
    with pytest.raises(Unavailable):
        app.enqueue_many([call])
    span = recorded.span("send default")
    assert span.status.status_code is StatusCode.ERROR
    assert of(span, "error.type") == ["leasemill.Unavailable"]
    (handle,) = app.enqueue_many([call])
    assert context_of(app, handle.id) == span_id(recorded.spans("send default")[1])


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_commit_is_a_span_below_its_run_and_its_follow_ups_come_from_there(
    app: App, clock: ManualClock, recorded: Recorded, is_async: bool
) -> None:
    @app.job(queue="mail")
    async def receipt(of: str) -> None: ...

    @app.job(name="charge")
    async def charge_async(ctx: Context) -> None:
        async with ctx.commit() as tx:
            tx.enqueue(receipt, "it")

    @app.job(name="charge-sync")
    def charge_sync(ctx: Context) -> None:
        with ctx.commit() as tx:
            tx.enqueue(receipt, "it")

    handle = (charge_async if is_async else charge_sync).enqueue()
    await adrain(app, clock)
    process, commit, followed = (recorded.span(it) for it in ("process default", "commit default", "process mail"))
    assert is_child(commit, process)
    assert commit.kind is SpanKind.CLIENT
    assert of(commit, "messaging.operation.name", "messaging.operation.type", "messaging.message.id") == [
        "commit",
        "settle",
        handle.id,
    ]
    assert of(commit, "leasemill.attempt", "leasemill.outcome") == [1, None]
    assert linked(followed) == [span_id(process)]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_refused_commit_is_an_event_and_not_an_error(app: App, recorded: Recorded, is_async: bool) -> None:
    @app.job(name="async")
    async def run_async(ctx: Context) -> None:
        async with ctx.commit():
            app.handle(ctx.job_id).cancel()

    @app.job(name="sync")
    def run_sync(ctx: Context) -> None:
        with ctx.commit():
            app.handle(ctx.job_id).cancel()

    (run_async if is_async else run_sync).enqueue()
    await adrain(app)
    commit, process = recorded.span("commit default"), recorded.span("process default")
    assert [(event.name, dict(event.attributes or {})) for event in commit.events] == [
        ("leasemill.refused", {"leasemill.reason": "cancelled"})
    ]
    assert of(commit, "leasemill.outcome", "error.type") == ["refused", None]
    assert of(process, "leasemill.outcome", "error.type") == ["lost", None]
    assert {commit.status.status_code, process.status.status_code} == {StatusCode.UNSET}


async def test_a_commit_that_conflicts_is_an_error(app: App, clock: ManualClock, recorded: Recorded) -> None:
    @app.job
    async def other() -> None: ...

    @app.job
    async def run(ctx: Context) -> None:
        async with ctx.commit() as tx:
            tx.enqueue(other)

    other.options(job_id="it/0", delay=3_600, priority=3).enqueue()
    run.options(job_id="it", retry=0).enqueue()
    await adrain(app)
    commit = recorded.span("commit default")
    assert of(commit, "error.type") == ["leasemill.JobConflict"]
    assert commit.status.status_code is StatusCode.ERROR


async def test_a_chain_and_the_callbacks_of_a_group_come_from_where_they_were_made(
    app: App, clock: ManualClock, recorded: Recorded
) -> None:
    @app.job(queue="first")
    async def first() -> None: ...

    @app.job(queue="second")
    async def second() -> None: ...

    @app.job(queue="then")
    async def then() -> None: ...

    with recorded.tracer.start_as_current_span("request"), app.group("g", then=then.call()) as group:
        group.enqueue(chain(first.call(), second.call()))
    app.group("g", then=then.call()).create()  # from elsewhere: headers are not content
    await adrain(app, clock)
    sent, request = recorded.span("send first"), recorded.span("request")
    assert linked(recorded.span("process first")) == [span_id(sent)]
    assert linked(recorded.span("process second")) == [span_id(sent)]
    assert linked(recorded.span("process then")) == [span_id(request)]


async def test_a_tick_comes_from_no_trace(app: App, clock: ManualClock, recorded: Recorded) -> None:
    @app.cron(timedelta(hours=1))
    @app.job(queue="declared")
    async def declared() -> None: ...

    @app.job(queue="chosen")
    async def chosen() -> None: ...

    with recorded.tracer.start_as_current_span("request"):
        app.schedules.set("chosen", timedelta(hours=1), chosen.call())
    await adrain(app, clock, until=timedelta(hours=1))
    ticks = [*recorded.spans("process declared"), *recorded.spans("process chosen")]
    assert len(ticks) >= 2
    assert all(span.parent is None and not span.links for span in ticks)
    assert trace_id(recorded.span("request")) not in {trace_id(span) for span in ticks}


async def test_enqueues_at_the_same_time_do_not_mix_their_contexts(app: App, recorded: Recorded) -> None:
    @app.job
    async def run(number: int) -> None: ...

    async def request(number: int) -> None:
        with recorded.tracer.start_as_current_span(f"request {number}"):
            await asyncio.sleep(0)
            await run.options(job_id=str(number)).aenqueue(number)

    await asyncio.gather(*(request(number) for number in range(5)))
    for span in recorded.spans("send default"):
        (number,) = of(span, "messaging.message.id")
        assert is_child(span, recorded.span(f"request {number}"))
        assert context_of(app, number) == span_id(span)


def test_the_date_of_a_run_at_is_not_touched(app: App) -> None:
    @app.job
    async def run() -> None: ...

    due = datetime(2030, 1, 1, tzinfo=UTC)
    assert run.options(run_at=due).enqueue().record().spec.run_at == int(due.timestamp() * 1_000_000)
