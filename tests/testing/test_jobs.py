"""What a test sees and does through `Jobs`, and what apps are bound to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from leasemill import App, Context, Fail, JobState, Retry
from leasemill.errors import Invalid, NotFound
from leasemill.testing.binding import STORE_KINDS, Binder, StoreKind

ON_EVERY_STORE = pytest.mark.parametrize("store", STORE_KINDS)
app = App("file:./must-not-be-opened")
ran: list[str] = []


@dataclass
class Address:
    street: str


@app.job
def order(ctx: Context, customer: str, article: str = "book", *, to: Address | None = None) -> None:
    with ctx.commit() as tx:
        tx.enqueue(remind.options(delay=3600), customer)


@app.job(queue="reminders", retry=Retry(max=1))
def remind(customer: str) -> None:
    ran.append(customer)
    if customer == "nobody":
        raise Fail("no address")
    if customer == "flaky":
        raise ConnectionError("not today")


NIGHT = next(hour for hour in range(24) if all((hour - now) % 24 >= 6 for now in (datetime.now(UTC).hour, 22)))
"""Hours away by the real clock, which PostgreSQL has, and by that of the tests, which begins at 22:13."""


@app.cron(f"0 {NIGHT} * * *", name="nightly", args={"customer": "everybody"})
@app.job
def nightly(customer: str) -> None:
    ran.append(f"nightly {customer}")


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@ON_EVERY_STORE
def test_waiting_jobs_show_their_arguments_as_the_handler_gets_them(leasemill: Binder, store: StoreKind) -> None:
    with leasemill(app, store=store) as jobs:
        order.enqueue("ann", to=Address("Main Street"))
        order.enqueue("bob", "pen")
        remind.enqueue("ann")
        assert jobs.enqueued(order) == [
            {"customer": "ann", "article": "book", "to": Address("Main Street")},
            {"customer": "bob", "article": "pen", "to": None},
        ]
        assert jobs.enqueued("remind") == [{"customer": "ann"}]
        assert len(jobs.enqueued()) == 3


@ON_EVERY_STORE
def test_drain_runs_what_is_due_and_time_brings_the_rest(leasemill: Binder, store: StoreKind) -> None:
    with leasemill(app, store=store) as jobs:
        order.enqueue("ann")
        assert jobs.drain().succeeded == 1
        assert (ran, jobs.enqueued(remind)) == ([], [{"customer": "ann"}])
        jobs.advance(timedelta(minutes=59))
        assert ran == []
        assert jobs.advance(s=60).succeeded == 1
        assert (ran, jobs.enqueued(), jobs.unfinished) == (["ann"], [], [])


@ON_EVERY_STORE
def test_finish_runs_everything_but_ticks(leasemill: Binder, store: StoreKind) -> None:
    with leasemill(app, store=store) as jobs:
        order.enqueue("ann")
        remind.enqueue("flaky")
        jobs.finish()
        assert sorted(ran) == ["ann", "flaky", "flaky"]
        assert jobs.enqueued() == []


@ON_EVERY_STORE
def test_schedules_fire_when_time_passes_or_when_the_test_wants(leasemill: Binder, store: StoreKind) -> None:
    with leasemill(app, store=store) as jobs:
        jobs.fire("nightly")
        assert jobs.enqueued("nightly") == [{"customer": "everybody"}]
        jobs.drain()
        assert ran == ["nightly everybody"]
        jobs.advance(timedelta(days=2))
        assert ran == ["nightly everybody"] * 3
        with pytest.raises(NotFound, match="weekly"):
            jobs.fire("weekly")


@ON_EVERY_STORE
def test_failures_are_named(leasemill: Binder, store: StoreKind) -> None:
    with leasemill(app, store=store) as jobs:
        failing = remind.enqueue("nobody")
        remind.enqueue("ann")
        jobs.drain()
        (failed,) = jobs.failures
        assert (failed.id, failed.kind, failed.arguments) == (failing.id, "remind", {"customer": "nobody"})
        assert (failed.state, failed.error) == (JobState.FAILED, "Fail: no address")


def test_the_error_of_a_failure_is_one_line_and_its_details_have_the_traceback(leasemill: Binder) -> None:
    own = App()

    @own.job(retry=0)
    def divides(by: int) -> float:
        return 1 / by

    with leasemill(own) as jobs:
        divides.enqueue(0)
        jobs.drain()
        (failed,) = jobs.failures
    assert failed.error == "ZeroDivisionError: division by zero"
    assert failed.details is not None
    assert "return 1 / by" in failed.details


async def test_async_tests_have_twins(leasemill: Binder) -> None:
    with leasemill(app) as jobs:
        await order.aenqueue("ann")
        assert (await jobs.adrain()).succeeded == 1
        assert (await jobs.aadvance(s=3600)).succeeded == 1
        await order.aenqueue("bob")
        await jobs.afinish()
    assert ran == ["ann", "bob"]


@ON_EVERY_STORE
def test_each_binding_is_empty(leasemill: Binder, store: StoreKind) -> None:
    for _ in range(2):
        with leasemill(app, store=store) as jobs:
            order.enqueue("ann", "book")
            assert len(jobs.enqueued()) == 1


def test_two_apps_on_postgresql_share_what_is_there(leasemill: Binder) -> None:
    other = App("memory:")
    with leasemill(app, store="postgresql"):
        handle = remind.enqueue("ann")
        with leasemill(other, store="postgresql"):
            assert other.handle(handle.id).status() is JobState.READY


@pytest.mark.leasemill(store="file")
def test_a_marker_names_the_store(leasemill: Binder) -> None:
    with leasemill(app):
        assert app.store.name.startswith("file:")


def test_a_seed_decides_ids(leasemill: Binder) -> None:
    ids = []
    for _ in range(2):
        with leasemill(app, seed=1):
            ids.append(order.enqueue("ann").id)
    assert ids[0] == ids[1]


def test_code_under_test_that_closes_its_app_stays_bound(leasemill: Binder) -> None:
    with leasemill(app) as jobs:
        with app:
            order.enqueue("ann")
        assert app.store.name == "memory:"
        assert len(jobs.enqueued(order)) == 1


def test_the_environments_store_is_out_of_reach(leasemill: Binder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEMILL_URL", "postgresql://production/jobs")
    with leasemill(app):
        assert app.store.name == "memory:"
        assert App().url == "file:./.leasemill"
    assert os.environ["LEASEMILL_URL"] == "postgresql://production/jobs"


def test_what_is_not_there_is_refused_with_what_is(leasemill: Binder) -> None:
    with leasemill(app) as jobs:
        with pytest.raises(Invalid, match=r"no job 'ordr'; its jobs are: nightly, order, remind"):
            jobs.enqueued("ordr")
        with pytest.raises(Invalid, match=r"write advance\(s=60\)"):
            jobs.advance()
    with pytest.raises(Invalid, match="no test store 'redis': write one of memory, file, postgresql"):
        leasemill(app, store="redis").__enter__()  # type: ignore[arg-type]
