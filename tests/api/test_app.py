"""Declaring jobs, enqueueing them, asking for them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasemill import App, Context, FixedLane, JobState, Retry
from leasemill.errors import Invalid, JobCancelled, JobConflict, JobDead, JobFailed, NoResult, NotFound, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, OnFailure, Policy
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> App:
    return App(store=MemoryStore(clock))


# Which store ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "variable", "chosen"),
    [
        (None, None, "file:./.leasemill"),
        (None, "", "file:./.leasemill"),
        (None, "postgresql://db/jobs", "postgresql://db/jobs"),
        ("file:./jobs", None, "file:./jobs"),
        ("file:./jobs", "postgresql://db/jobs", "file:./jobs"),
        ("memory:", "postgresql://db/jobs", "memory:"),
    ],
)
def test_an_explicit_url_wins_over_the_environment_and_the_environment_over_the_default(
    url: str | None, variable: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    if variable is not None:
        monkeypatch.setenv("LEASEMILL_URL", variable)
    assert App(url).url == chosen


def test_an_explicit_url_that_is_empty_is_refused_instead_of_ignored() -> None:
    with pytest.raises(Invalid, match="is not the URL of a store"), App("") as app:
        app.handle("job").status()


def test_declaring_jobs_opens_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    app = App()

    @app.job
    def noop() -> None: ...

    assert list(tmp_path.iterdir()) == []
    assert list(app.jobs) == ["noop"]


def test_a_closed_app_opens_its_store_again() -> None:
    app = App("memory:")
    with app:
        first = app.store
    with pytest.raises(Unavailable):
        first.totals()
    assert app.store is not first


def test_an_app_can_be_bound_to_another_store_for_a_while(app: App) -> None:
    own, other = app.store, MemoryStore()
    with app.bound_to(other):
        assert app.store is other
    assert app.store is own


# Declaring ------------------------------------------------------------------------------------------------------


def test_a_job_is_known_by_its_functions_name_or_the_given_one(app: App) -> None:
    @app.job
    def one() -> None: ...

    @app.job(name="billing.two")
    async def two() -> None: ...

    assert {kind: job.is_async for kind, job in app.jobs.items()} == {"one": False, "billing.two": True}


def test_a_kind_is_declared_once(app: App) -> None:
    @app.job
    def twice() -> None: ...

    def other() -> None: ...

    with pytest.raises(Invalid, match=r"kind 'twice' is declared twice.*@app.job\(name=...\)"):
        app.job(name="twice")(other)


def test_only_functions_are_declared(app: App) -> None:
    with pytest.raises(Invalid, match="is not a function; declare a job with"):
        app.job(partial(print, "x"))


def test_what_is_declared_becomes_the_kinds_policy(app: App) -> None:
    @app.job(retry=Retry(max=7, base=1, cap=timedelta(minutes=1)), lease="heavy", timeout=300, on_failure="block")
    def declared() -> None: ...

    assert declared.policy == Policy(7, 60 * SECOND, 300 * SECOND, None, SECOND, 60 * SECOND, OnFailure.BLOCK)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queue": "no spaces"}, "queue 'no spaces' is not a name"),
        ({"priority": 10}, "priority is 10; write a whole number from 0 to 9"),
        ({"timeout": 0}, "timeout is 0 s; it must be more than 0 s"),
        ({"timeout": "soon"}, "timeout is 'soon'; write seconds or a timedelta"),
        ({"lease": "long"}, "lease 'long' is not one of default, heavy, external"),
        ({"lease": -1}, "lease is -1 s; it must be at least 0.001 s"),
        ({"on_failure": "stop"}, "on_failure is 'stop'; write 'continue' or 'block'"),
        ({"retry": -1}, r"Retry\(max=-1\): retries must be from 0 to 1000"),
        ({"max_expirations": 0}, "max_expirations is 0"),
        ({"lane": "acount"}, r"lane of charge: 'acount' is not one of its parameters \(account, cents\).*FixedLane"),
        ({"lane": lambda account, euros: account}, "lane of charge: 'euros' is not one of its parameters"),
    ],
)
def test_a_bad_declaration_is_refused_where_it_is_written(app: App, options: dict[str, Any], sentence: str) -> None:
    def charge(account: str, cents: int) -> None: ...

    with pytest.raises(Invalid, match=sentence):
        app.job(**options)(charge)


@pytest.mark.parametrize(("base", "cap"), [(60, None), (2, 1), (None, 0.1)])
def test_a_backoff_base_above_its_cap_is_refused(base: float | None, cap: float | None) -> None:
    with pytest.raises(Invalid, match="make the cap at least the base"):
        Retry(base=base, cap=cap)


def test_a_handler_may_be_annotated_with_what_is_local(app: App) -> None:
    @dataclass
    class Local:
        value: int

    @app.job
    def takes(local: Local) -> None: ...

    assert takes.call(Local(1)).spec.payload == b'{"local":{"value":1}}'


# Enqueueing -----------------------------------------------------------------------------------------------------


def test_a_job_goes_where_its_declaration_says(app: App) -> None:
    @app.job(queue="billing", lane="account", priority=3)
    def charge(ctx: Context, account: str, cents: int) -> None: ...

    spec = charge.enqueue(account="a1", cents=500).record().spec
    assert (spec.queue, spec.kind, spec.lane, spec.priority) == ("billing", "charge", "a1", 3)
    assert spec.payload == b'{"account":"a1","cents":500}'


def test_a_lane_is_an_argument_a_function_of_arguments_or_one_for_all(app: App) -> None:
    def charge(account: str, cents: int = 0, region: str | None = None) -> None: ...

    def lane_of(name: str, rule: Any) -> str | None:
        return app.job(name=name, lane=rule)(charge).call("a1", 700).spec.lane

    assert lane_of("argument", "account") == "a1"
    assert lane_of("number", "cents") == "700"
    assert lane_of("absent", "region") is None
    assert lane_of("function", lambda cents, account: f"{account}-{cents // 100}") == "a1-7"
    assert lane_of("all", lambda **arguments: "+".join(arguments)) == "account+cents+region"
    assert lane_of("fixed", FixedLane("books")) == "books"


async def test_options_change_what_is_enqueued_through_them_and_nothing_else(app: App, clock: ManualClock) -> None:
    @app.job(lane="account")
    def charge(account: str) -> None: ...

    at = datetime(2030, 1, 2, tzinfo=UTC)
    special = charge.options(priority=9, job_id="job-1", lane="vip", delay=1.5)
    spec = (await (await special.aenqueue(account="a1")).arecord()).spec
    assert (spec.id, spec.priority, spec.lane, spec.delay_us) == ("job-1", 9, "vip", 1_500_000)
    later = special.options(run_at=at, job_id="job-2").call(account="a1").spec
    assert (later.id, later.priority, later.run_at, later.delay_us) == ("job-2", 9, int(at.timestamp()) * SECOND, 0)
    assert charge.options(delay=timedelta(minutes=1)).call("a").spec.delay_us == 60 * SECOND
    plain = charge.call(account="a1").spec
    assert (plain.priority, plain.lane, plain.run_at, plain.delay_us) == (0, "a1", None, 0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"run_at": datetime(2030, 1, 1)}, "run_at 2030-01-01T00:00:00 has no time zone"),  # noqa: DTZ001
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay and run_at exclude each other"),
        ({"delay": -1}, "delay is -1 s; it must not be negative"),
        ({"delay": float("nan")}, "delay is nan; write seconds or a timedelta"),
        ({"priority": -1}, "priority is -1"),
    ],
)
def test_bad_options_are_refused(app: App, options: dict[str, Any], sentence: str) -> None:
    @app.job
    def noop() -> None: ...

    with pytest.raises(Invalid, match=sentence):
        noop.options(**options)


def test_the_same_call_with_the_same_id_is_a_duplicate_and_another_is_refused(app: App) -> None:
    @app.job
    def charge(account: str, cents: int) -> None: ...

    once = charge.options(job_id="order-1")
    first, again = once.enqueue("a1", 5), once.enqueue(cents=5, account="a1")
    assert (first.is_duplicate, again.is_duplicate, again.id) == (False, True, "order-1")
    with pytest.raises(JobConflict, match="job 'order-1' exists with other content"):
        once.enqueue("a1", 6)


async def test_many_calls_are_enqueued_at_once_in_order(app: App) -> None:
    @app.job
    def charge(cents: int) -> None: ...

    @app.job
    def receipt(account: str) -> None: ...

    handles = charge.enqueue_many([charge.call(cents=1), charge.options(priority=5).call(2)])
    assert [handle.record().spec.payload for handle in handles] == [b'{"cents":1}', b'{"cents":2}']
    assert len(await charge.aenqueue_many(charge.call(cents) for cents in range(3))) == 3
    mixed = app.enqueue_many([charge.call(1), receipt.call("a1")])
    assert [handle.record().spec.kind for handle in mixed] == ["charge", "receipt"]
    assert await app.aenqueue_many([]) == []


def test_a_long_list_is_sent_in_several_calls(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job
    def noop(text: str = "") -> None: ...

    sizes: list[int] = []
    run = app.store.run

    def counting(command: c.Command[Any]) -> Any:
        if isinstance(command, c.Enqueue):
            sizes.append(len(command.jobs))
        return run(command)

    monkeypatch.setattr(app.store, "run", counting)
    assert len(noop.enqueue_many(noop.call() for _ in range(10_001))) == 10_001
    noop.enqueue_many(noop.call("x" * 1_000_000) for _ in range(17))
    assert sizes == [10_000, 1, 16, 1]


@rule("W9")
def test_only_the_first_sending_of_a_drawn_id_is_called_new(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.job
    def noop() -> None: ...

    news: list[bool] = []
    run = app.store.run

    def noting(command: c.Enqueue) -> list[c.EnqueueOutcome]:
        news.append(command.are_new)
        return run(command)

    monkeypatch.setattr(app.store, "run", noting)
    call = noop.call()
    noop.enqueue_many([call])
    noop.enqueue_many([call])
    noop.enqueue_many([noop.call(), call])
    again = noop.call()
    noop.enqueue_many([again, again])
    noop.options(job_id="mine").enqueue()
    assert news == [True, False, False, False, False]


def test_one_conflict_among_many_is_raised_after_the_others_were_taken(app: App) -> None:
    @app.job
    def charge(cents: int) -> None: ...

    charge.options(job_id="a").enqueue(1)
    with pytest.raises(JobConflict):
        charge.enqueue_many([charge.options(job_id="a").call(2), charge.options(job_id="b").call(2)])
    assert app.handle("b").status() is JobState.READY


def test_an_enqueue_that_was_not_answered_says_how_to_repeat_it(app: App) -> None:
    @app.job
    def noop() -> None: ...

    app.store.close()
    with pytest.raises(Unavailable) as unavailable:
        noop.options(job_id="n-1").enqueue()
    assert unavailable.value.__notes__ == ["the job may or may not be enqueued: repeat with .options(job_id='n-1')"]


# The handle -----------------------------------------------------------------------------------------------------


def claimed(app: App) -> c.Lease:
    (lease,) = app.store.claim("w", ["default"], 1)
    return lease


async def test_a_handle_tells_how_the_job_stands_and_what_came_of_it(app: App) -> None:
    @app.job
    def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    handle = add.enqueue(1, 2)
    assert handle.status() is await handle.astatus() is JobState.READY
    lease = claimed(app)
    assert handle.status() is JobState.LEASED
    app.store.ack([c.AckReport(lease.job.id, lease.token, b'{"sum":3}')])
    assert handle.result() == await handle.aresult() == {"sum": 3}
    assert app.handle(handle.id).result() == {"sum": 3}


async def test_waiting_for_a_result_ends_in_time(app: App) -> None:
    @app.job
    def noop() -> None: ...

    handle = noop.enqueue()
    with pytest.raises(TimeoutError, match="has not ended in time; it is ready"):
        handle.result(timeout=0)
    with pytest.raises(TimeoutError):
        await handle.aresult(timeout=timedelta(milliseconds=5))


def test_a_failed_job_gives_its_error_and_a_dead_one_says_why(app: App, clock: ManualClock) -> None:
    @app.job(max_expirations=1)
    def noop() -> None: ...

    failed, cancelled, quarantined = noop.enqueue(), noop.enqueue(), noop.options(job_id="q").enqueue()
    lease = claimed(app)
    app.store.nack([c.NackReport(lease.job.id, lease.token, "ValueError: no", is_permanent=True)])
    app.store.cancel([cancelled.id], by="me", reason="not needed")
    (lease,) = app.store.claim("w", ["default"], 1, kinds={"noop": noop.policy})
    app.store.start([c.StartReport(lease.job.id, lease.token)])
    clock.advance(s=31)
    app.store.expire()
    with pytest.raises(JobFailed, match="failed: ValueError: no"):
        failed.result()
    with pytest.raises(JobCancelled, match="was cancelled: by me: not needed"):
        cancelled.result()
    with pytest.raises(JobDead, match="quarantined: 1 of its runs"):
        quarantined.result()


def test_a_result_that_is_not_there_or_does_not_fit_is_said_to_be_so(app: App) -> None:
    @app.job
    def add() -> int:
        return 1

    for content, sentence in ((None, "succeeded without a result"), (b'"x"', "does not fit the declared type")):
        handle = add.enqueue()
        lease = claimed(app)
        app.store.ack([c.AckReport(lease.job.id, lease.token, content)])
        with pytest.raises(NoResult, match=sentence):
            handle.result()


def test_an_unknown_job_is_not_found(app: App) -> None:
    with pytest.raises(NotFound, match="there is no job 'nobody'"):
        app.handle("nobody").status()
