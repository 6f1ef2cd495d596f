"""The outbox of document 002 on PostgreSQL: the view with its names, and one test for each of its rules.

A test is named after its rule: `test_rule_020_001_…` is for RULE-020-001. The table in docs/guides/outbox.md says how
each is kept, and the last test here compares the two.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from leasemill import App, Context, JobState, JobType, Worker
from leasemill.api.policy import LEASES_S, REAPER_INTERVALS_S
from leasemill.errors import Invalid, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, AbortReason, Policy
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.statements import FILES
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.worker_records import WorkerRecord, encode_record
from leasemill.testing.clock import ManualClock
from leasemill.worker.housekeeping import Chore, Housekeeping
from leasemill.worker.metrics import Metrics
from leasemill.worker.reaper import Reaper
from leasemill.worker.timing import default_reaper_s
from tests.worker.support import until, working

ROOT = Path(__file__).resolve().parents[3]
Connection = psycopg.Connection[Any]


@pytest.fixture
def app(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("LEASEMILL_URL", postgres_url)
    with App(postgres_url) as made:
        yield made


@pytest.fixture
def event(app: App) -> JobType[[str], None]:
    @app.job(queue="outbox", lane="aggregate")
    async def event(aggregate: str) -> None:
        pass

    return event


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Connection]:
    """The producer's own connection."""
    with psycopg.connect(parse_url(postgres_url)[0]) as connection:
        yield connection


class Outbox:
    """The view."""

    def __init__(self, admin: Connection, schema: str) -> None:
        self._admin = admin
        self.name = f"{schema}.outbox"

    def row(self, job_id: str) -> Any:
        with self._admin.cursor(row_factory=namedtuple_row) as cursor:
            row = cursor.execute(f"select * from {self.name} where id = %s".encode(), [job_id]).fetchone()
        assert row is not None
        return row

    def count(self, status: str) -> int:
        row = self._admin.execute(f"select count(*) from {self.name} where status = %s".encode(), [status]).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def outbox(admin: Connection, schema: str) -> Outbox:
    return Outbox(admin, schema)


def put(event: JobType[[str], None], shop: Connection, aggregate: str) -> str:
    job_id = event.using(shop).enqueue(aggregate).id
    shop.commit()
    return job_id


def claimed(store: Any, limit: int = 10, worker: str = "w") -> list[c.Lease]:
    leases: list[c.Lease] = store.claim(worker, ["outbox"], limit)
    return leases


class Away(PostgresStore):
    """A database that cannot be reached while a test says so. What the test itself asks is answered."""

    is_away = False

    def run(self, command: Any) -> Any:
        if self.is_away and not isinstance(command, c.GetJob):
            raise Unavailable("the database is unreachable")
        return super().run(command)


# The view --------------------------------------------------------------------------------------------------------


def test_the_view_has_the_names_and_statuses_of_the_document(
    app: App, event: JobType[[str], None], shop: Connection, outbox: Outbox
) -> None:
    first, second = put(event, shop, "a"), put(event, shop, "a")
    before = outbox.row(first)
    assert before[:4] == (first, "PENDING", None, None)
    assert abs(before.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert (before.queue, before.kind, before.aggregate, before.payload) == (
        "outbox",
        "event",
        "a",
        '{"aggregate":"a"}',
    )
    (lease,) = claimed(app.store)
    held = outbox.row(first)
    assert (held.status, held.lock_token) == ("PROCESSING", lease.token)
    assert outbox.row(second).status == "PENDING"
    app.store.ack([c.AckReport(first, lease.token)])
    assert outbox.row(first)[1:4] == ("COMPLETED", None, None)
    (lease,) = claimed(app.store)
    app.store.nack([c.NackReport(second, lease.token, "never", is_permanent=True)])
    assert outbox.row(second)[1:4] == ("FAILED", None, None)
    app.store.cancel([second], by="me", reason="a test")
    assert outbox.row(second).status == "CANCELLED"


def test_a_message_that_ended_too_many_workers_is_a_dead_letter(
    app: App, event: JobType[[str], None], shop: Connection, outbox: Outbox, postgres_url: str
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store, app.bound_to(store):
        store.set_policy("outbox", Policy(max_expirations=1), by="me", reason="a test")
        job_id = put(event, shop, "a")
        (lease,) = claimed(store)
        store.start([c.StartReport(job_id, lease.token)])
        clock.advance(s=31)
        store.expire()
        assert outbox.row(job_id)[1:4] == ("DEAD_LETTER", None, None)


def test_offsets_that_are_acquired_are_no_messages(app: App, outbox: Outbox) -> None:
    app.store.acquire([c.AcquireRequest("offsets", "d", 1, "w", "t")])
    assert outbox.count("PROCESSING") == 0


def test_the_view_cannot_be_written_to(event: JobType[[str], None], shop: Connection, outbox: Outbox) -> None:
    put(event, shop, "a")
    for change in (f"update {outbox.name} set status = 'COMPLETED'", f"delete from {outbox.name}"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState), shop.transaction():
            shop.execute(change.encode())


# Lease-based locking ---------------------------------------------------------------------------------------------


def test_rule_020_001_every_claim_is_bounded_in_time(
    app: App, event: JobType[[str], None], shop: Connection, outbox: Outbox
) -> None:
    job_id = put(event, shop, "a")
    claimed(app.store)
    left = outbox.row(job_id).locked_until - datetime.now(UTC)
    assert timedelta(seconds=25) < left <= timedelta(seconds=30)


def test_rule_020_002_leases_are_of_30_60_or_120_seconds_and_set_at_run_time(
    app: App, event: JobType[[str], None], shop: Connection, outbox: Outbox
) -> None:
    assert LEASES_S == {"default": 30, "heavy": 60, "external": 120}
    for seconds in (60, 120):
        app.store.set_policy("outbox", Policy(lease_ttl_us=seconds * SECOND), by="me", reason="a test")
        job_id = put(event, shop, f"a{seconds}")
        claimed(app.store)
        left = outbox.row(job_id).locked_until - datetime.now(UTC)
        assert timedelta(seconds=seconds - 5) < left <= timedelta(seconds=seconds)


def test_rule_020_003_an_update_without_the_token_of_the_claim_is_rejected(
    event: JobType[[str], None], shop: Connection, outbox: Outbox, postgres_url: str, app: App
) -> None:
    """Stricter: a token belongs to one claim, so a worker is fenced from its own earlier lease; and time revokes it."""
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store, app.bound_to(store):
        job_id = put(event, shop, "a")
        (old,) = claimed(store)
        clock.advance(s=31)
        (late,) = store.ack([c.AckReport(job_id, old.token)])
        (new,) = claimed(store)
        assert (new.worker, new.token == old.token) == (old.worker, False)
        (stale,) = store.ack([c.AckReport(job_id, old.token)])
        (forged,) = store.ack([c.AckReport(job_id, "guessed")])
        assert all(isinstance(answer, c.Lost) for answer in (late, stale, forged))
        assert outbox.row(job_id)[1:4:2] == ("PROCESSING", new.token)
        assert isinstance(store.ack([c.AckReport(job_id, new.token)])[0], c.Acked)


# Heartbeat -------------------------------------------------------------------------------------------------------


async def test_rule_020_010_a_long_run_renews_its_lease(app: App) -> None:
    @app.job(queue="outbox", lease=2, timeout=60)
    async def slow() -> None:
        await asyncio.sleep(3)

    handle = slow.enqueue()
    worker = Worker(app, drain=True, handle_signals=False)
    await asyncio.wait_for(worker.run(), 60)
    assert (handle.record().attempt, handle.status()) == (1, JobState.SUCCEEDED)
    assert worker.metrics.extended >= 1


def test_rule_020_011_a_heartbeat_is_more_often_than_every_third_of_the_lease(
    app: App, event: JobType[[str], None]
) -> None:
    Worker(app, heartbeat_interval=9.9)
    with pytest.raises(Invalid, match="less than a third of the shortest lease, 30 s"):
        Worker(app, heartbeat_interval=10)


async def test_rule_020_012_without_a_heartbeat_a_run_is_stopped_and_does_not_complete(
    postgres_url: str, outbox: Outbox
) -> None:
    """Stricter in one point, milder in one: it is repeated at once, and stopped before others may start."""

    stopped_s: list[float] = []
    with Away(postgres_url) as store, App(store=store) as app:

        @app.job(queue="outbox", lease=4)
        async def relay(ctx: Context) -> None:
            if ctx.attempt > 1:
                return
            store.is_away = True
            began = time.monotonic()
            try:
                await asyncio.sleep(60)
            finally:
                stopped_s.append(time.monotonic() - began)

        handle = relay.enqueue()
        async with working(app) as worker:
            await until(lambda: stopped_s, limit_s=30)
            assert stopped_s[0] < 4.0, "somebody else may have it by now"
            assert outbox.count("COMPLETED") == 0
            store.is_away = False
            await until(lambda: worker.metrics.succeeded, limit_s=30)
        assert (worker.metrics.lost, handle.record().attempt) == (1, 2)


# Reaper ----------------------------------------------------------------------------------------------------------


async def test_rule_020_020_a_reaper_runs_in_every_worker(app: App, event: JobType[[str], None]) -> None:
    async with working(app) as worker:
        await until(lambda: worker.metrics.reaper_runs >= 1)


def test_rule_020_021_the_reaper_frees_what_is_expired_and_nothing_else(
    app: App, event: JobType[[str], None], shop: Connection, outbox: Outbox, postgres_url: str
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store, app.bound_to(store):
        stuck = put(event, shop, "a")
        claimed(store)
        clock.advance(s=20)
        fresh = put(event, shop, "b")
        claimed(store)
        clock.advance(s=11)
        assert [one.job_id for one in store.expire()] == [stuck]
        assert outbox.row(stuck)[1:4] == ("PENDING", None, None)
        assert outbox.row(fresh).status == "PROCESSING"


async def test_rule_020_022_the_reaper_runs_every_10_5_or_30_seconds_and_within_a_lease(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document's third row, 30 s, is not less than its own default lease of 30 s: it goes with longer ones."""

    @app.job(queue="outbox", lease="heavy")
    async def heavy() -> None: ...

    assert REAPER_INTERVALS_S == {"default": 10, "high-volume": 5, "low-volume": 30}
    assert default_reaper_s(30) == 10
    for preset, seconds in (("default", 10), ("high-volume", 5), ("low-volume", 30), (None, 10)):
        assert await reaper_interval_s(app, preset, monkeypatch) == seconds

    @app.job(queue="outbox")
    async def event() -> None: ...

    with pytest.raises(Invalid, match=r"reaper interval 30 s must be .* less than the shortest lease, 30 s"):
        Worker(app, reaper_interval="low-volume")


async def reaper_interval_s(app: App, preset: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """Of a worker that runs: how long its housekeeping waits after the reaper's first run."""
    chores: list[Chore] = []
    init = Housekeeping.__init__

    def noting(self: Housekeeping, worker_id: str, given: list[Chore], *arguments: Any, **options: Any) -> None:
        chores.extend(given)
        init(self, worker_id, given, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Housekeeping, "__init__", noting)
        async with working(app, reaper_interval=preset) as worker:
            await until(lambda: worker.metrics.reaper_runs >= 1)
    (interval_s,) = [chore.interval_s() for chore in chores if chore.name == "reaper"]
    return interval_s


async def test_rule_020_023_the_reaper_counts_runs_recovered_and_how_long_they_were_stuck(postgres_url: str) -> None:
    """Beside a worker that claims from the same queue: whatever records an expiry, it is counted, and once."""
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store, App(store=store) as app:

        @app.job(queue="outbox")
        async def event() -> None: ...

        event.enqueue_many([event.call() for _ in range(3)])
        assert len(store.claim("dead", ["outbox"], 3)) == 3
        clock.advance(s=30 + 12)
        async with working(app) as worker:
            await until(lambda: worker.metrics.succeeded == 3 and worker.metrics.reaper_runs >= 1)
        metrics = worker.metrics
        assert metrics.reaper_recovered == 3
        assert metrics.reaper_stuck_seconds == pytest.approx(3 * 12)
        assert metrics.reaper_stuck_seconds_max == pytest.approx(12)


async def test_rule_020_023_every_run_of_the_reaper_says_how_many_it_recovered(postgres_url: str) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store, App(store=store) as app:

        @app.job(queue="outbox")
        async def event() -> None: ...

        metrics = Metrics()
        reaper = Reaper("w", store, metrics)
        for recovered in (2, 0, 1):
            event.enqueue_many([event.call() for _ in range(recovered)])
            assert len(store.claim("dead", ["outbox"], recovered or 1)) == recovered
            clock.advance(s=31)
            reaper.run()
            store.cancel([job.spec.id for job in store.jobs().jobs], by="me", reason="a test")
            assert metrics.reaper_recovered_last_run == recovered
        reaper.close()
        assert (metrics.reaper_runs, metrics.reaper_recovered) == (3, 3)


# Worker lifecycle ------------------------------------------------------------------------------------------------


async def test_rule_020_030_a_worker_that_stops_ends_what_it_has_begun_and_takes_no_more(app: App) -> None:
    began: list[int] = []

    @app.job(queue="outbox")
    async def slow(number: int) -> None:
        began.append(number)
        await asyncio.sleep(0.4)

    slow.enqueue_many([slow.call(number) for number in range(20)])
    async with working(app, concurrency=4) as worker:
        await until(lambda: len(began) == 4)
    assert worker.metrics.succeeded == len(began)
    assert sum(app.handle(job.spec.id).status() is JobState.READY for job in app.store.jobs().jobs) == 20 - len(began)


async def test_rule_020_031_a_shutdown_is_no_longer_than_a_lease(app: App, outbox: Outbox) -> None:
    """Whatever its handlers do. What they held is PENDING when the worker has gone; if a handler has not ended, the
    reaper recovers its event."""
    may_end = threading.Event()

    @app.job(queue="outbox")
    def deaf() -> None:
        may_end.wait(100)

    @app.job(queue="outbox")
    async def stubborn() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)

    @app.job(queue="outbox")
    async def ends_when_cancelled() -> None:
        await asyncio.sleep(100)

    Worker(app, shutdown_timeout=30)
    with pytest.raises(Invalid, match=r"shutdown timeout 31 s must not be .* longer than the shortest lease, 30 s"):
        Worker(app, shutdown_timeout=31)

    deaf.enqueue(), stubborn.enqueue(), ends_when_cancelled.enqueue()
    worker = Worker(app, shutdown_timeout=1, handle_signals=False)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.metrics.running == 3)
    began = time.monotonic()
    worker.stop()
    await asyncio.wait_for(running, 60)
    assert time.monotonic() - began < 20, "the lease is 30 s, the timeout 1 s"
    may_end.set()
    assert (outbox.count("PENDING"), outbox.count("PROCESSING")) == (1, 2)


async def test_rule_020_032_a_worker_has_a_name_of_its_own_in_records_and_in_every_log_line(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two workers beside each other: jobs that succeed, fail and are lost, and a database that goes away."""
    with Away(postgres_url) as store, App(store=store) as app:

        @app.job(queue="outbox", retry=0)
        async def wrong() -> None:
            raise ValueError("no")

        @app.job(queue="outbox", lease=4)
        async def slow(ctx: Context) -> None:
            await asyncio.sleep(0 if ctx.attempt > 1 else 60)

        failed, lost = wrong.enqueue(), slow.enqueue()
        with caplog.at_level(logging.DEBUG, "leasemill"):
            async with working(app) as one, working(app) as other:
                assert one.id != other.id
                await until(lambda: failed.status() is JobState.FAILED and one.metrics.running + other.metrics.running)
                store.is_away = True
                await until(lambda: one.metrics.lost + other.metrics.lost)
                store.is_away = False
                await until(lambda: lost.status() is JobState.SUCCEEDED)
        ids = {one.id, other.id}
        assert {run.worker for handle in (failed, lost) for run in handle.record().executions} <= ids
        lines = [line for line in caplog.records if line.name.startswith("leasemill.worker")]
        assert len(lines) > 8
        assert [line.getMessage() for line in lines if vars(line).get("worker") not in ids] == []


# Concurrency -----------------------------------------------------------------------------------------------------


def test_rule_020_040_claims_skip_what_is_locked(app: App, shop: Connection, schema: str) -> None:
    text = FILES["claim"].read_text()
    assert len(re.findall(r"for update\b", text)) == len(re.findall(r"for update\b[^\n]*skip locked", text)) >= 1

    @app.job(queue="outbox")
    async def free() -> None: ...

    locked, other = free.enqueue(), free.enqueue()
    query = f"select seq from {schema}.ready order by available_at, seq limit 1 for update"
    assert len(shop.execute(query.encode()).fetchall()) == 1
    with without_waiting_for_a_lock():
        assert [lease.job.id for lease in claimed(app.store)] == [other.id]
    shop.rollback()
    assert [lease.job.id for lease in claimed(app.store)] == [locked.id]


def test_rule_020_040_an_expired_lease_that_is_locked_holds_up_neither_claims_nor_the_reaper(
    event: JobType[[str], None], shop: Connection, outbox: Outbox, postgres_url: str, app: App, schema: str
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store, app.bound_to(store):
        jobs = [put(event, shop, f"a{number}") for number in range(4)]
        locked, *others = [lease.job.id for lease in claimed(store, limit=3)]
        clock.advance(s=31)
        query = f"select no from {schema}.leases order by no limit 1 for update"
        assert len(shop.execute(query.encode()).fetchall()) == 1
        with without_waiting_for_a_lock():
            assert {lease.job.id for lease in claimed(store, limit=1)} <= {*others, jobs[3]}
            store.expire()
            assert outbox.row(locked).status == "PROCESSING"
            claimed(store)
            assert [outbox.row(job_id).status for job_id in (*others, jobs[3])] == ["PROCESSING"] * 3
        shop.rollback()
        assert [one.job_id for one in store.expire()] == [locked]


@contextmanager
def without_waiting_for_a_lock() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 9, "a statement that waits for a lock gives up after 10 s"


async def test_rule_020_041_parallel_runs_and_connections_are_bounded(app: App, admin: Connection) -> None:
    running = most = 0

    @app.job(queue="outbox")
    async def busy(ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        async with ctx.commit() as tx:
            await tx.execute("select pg_sleep(0.01)")
        running -= 1

    assert Worker(app).concurrency == 10
    busy.enqueue_many([busy.call() for _ in range(100)])
    worker = Worker(app, drain=True, handle_signals=False, concurrency=7)
    await asyncio.wait_for(worker.run(), 30)
    assert most == 7
    row = admin.execute(
        "select count(*) filter (where application_name = 'leasemill'), "
        "count(*) filter (where application_name = 'leasemill commit') from pg_stat_activity"
    ).fetchone()
    assert row is not None
    assert row[0] <= 10 + 1
    assert row[1] <= 7


async def test_rule_020_042_a_worker_holds_no_more_than_it_has_room_for(app: App, outbox: Outbox) -> None:
    is_open = asyncio.Event()

    @app.job(queue="outbox")
    async def stuck() -> None:
        await is_open.wait()

    stuck.enqueue_many([stuck.call() for _ in range(300)])
    async with working(app, concurrency=5, prefetch=3) as worker:
        await until(lambda: worker.metrics.running == 5)
        await asyncio.sleep(0.3)
        assert outbox.count("PROCESSING") <= 5 + 3
        is_open.set()
        await until(lambda: worker.metrics.succeeded == 300, limit_s=30)


# Prohibitions ----------------------------------------------------------------------------------------------------


async def test_rule_020_050_nothing_runs_without_a_lease(app: App, outbox: Outbox) -> None:
    seen: list[tuple[str, bool]] = []

    @app.job(queue="outbox")
    async def looking(ctx: Context) -> None:
        row = outbox.row(ctx.job_id)
        seen.append((row.status, row.locked_until > datetime.now(UTC)))

    looking.enqueue_many([looking.call() for _ in range(20)])
    await asyncio.wait_for(Worker(app, drain=True, handle_signals=False).run(), 60)
    assert seen == [("PROCESSING", True)] * 20


@pytest.mark.parametrize("is_async", [True, False])
async def test_rule_020_051_a_run_is_aborted_after_three_leases(app: App, is_async: bool) -> None:
    ended: list[str] = []

    @app.job(queue="outbox", name="endless", lease=1, retry=0)
    async def endless_async() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append("async")

    @app.job(queue="outbox", name="endless_too", lease=1, retry=0)
    def endless_in_a_thread(ctx: Context) -> None:
        ctx.lost.wait(100)
        ended.append("thread")

    handle = (endless_async if is_async else endless_in_a_thread).enqueue()
    began = time.monotonic()
    await asyncio.wait_for(Worker(app, drain=True, handle_signals=False).run(), 60)
    assert time.monotonic() - began >= 3
    assert ended == ["async" if is_async else "thread"]
    (run,) = handle.record().executions
    assert (run.reason, "ran longer than its timeout of 3 s" in (run.error or "")) == (AbortReason.FAILED, True)


async def test_rule_020_052_a_worker_that_dies_is_logged_counted_and_its_jobs_recovered(
    app: App, admin: Connection, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It held a job and was seen; then its lease ran out and it was seen no more."""

    @app.job(queue="outbox")
    async def event() -> None: ...

    handle = event.enqueue()
    app.store.claim("the-dead-one", ["outbox"], 1, kinds={"event": Policy(lease_ttl_us=1_000)})
    seen = WorkerRecord("the-dead-one", "mill", 4711, 0.0, 0.0, 1.0, {"outbox": 1}, 10, False, [], {})
    app.store.presence.publish(seen.worker, encode_record(seen))
    admin.execute(f"update {schema}.workers set seen_at = seen_at - {60 * SECOND}".encode())
    async with working(app, worker_id="the-living-one") as worker:
        await until(lambda: worker.metrics.succeeded == 1 and worker.metrics.dead_workers)
        assert worker.metrics.dead_workers == 1
        assert worker.metrics.reaper_recovered == 1
    assert [run.worker for run in handle.record().executions] == ["the-dead-one", "the-living-one"]
    (line,) = [line for line in caplog.records if vars(line).get("dead_worker") == "the-dead-one"]
    assert (line.levelno, vars(line)["worker"]) == (logging.ERROR, "the-living-one")
    assert "host mill, pid 4711" in line.getMessage()


# The example and the page ----------------------------------------------------------------------------------------


def test_the_page_has_every_rule_of_the_document_and_each_has_its_test() -> None:
    rules = [
        f"RULE-020-{number:03}" for number in (1, 2, 3, 10, 11, 12, 20, 21, 22, 23, 30, 31, 32, 40, 41, 42, 50, 51, 52)
    ]
    page = (ROOT / "docs" / "guides" / "outbox.md").read_text()
    assert re.findall(r"^\| (RULE-020-\d{3}) ", page, re.MULTILINE) == rules
    tests = [f"RULE-020-{name[14:17]}" for name in globals() if name.startswith("test_rule_")]
    assert list(dict.fromkeys(tests)) == rules
