"""`job.using(connection)`: jobs that come and go with the caller's own transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.adapt import Loader
from psycopg.rows import dict_row

from leasemill import App, JobState, JobType, Worker
from leasemill.errors import Invalid, JobConflict, NotFound, QueueRefused, Refused
from leasemill.kernel import commands as c
from leasemill.store.factory import open_store
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.rules import rule
from tests.store.postgres.listening import has_succeeded, is_listening
from tests.worker.support import until, working

Connection = psycopg.Connection[Any]
LANE_JOBS = 40


@pytest.fixture
def app(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("LEASEMILL_URL", postgres_url)
    with App(postgres_url) as made:
        yield made


@pytest.fixture
def note(app: App) -> JobType[[int], int]:
    @app.job(queue="notes")
    async def note(number: int) -> int:
        return number

    return note


@pytest.fixture
def step(app: App) -> JobType[[str, int], None]:
    @app.job(queue="steps", lane="lane")
    async def step(lane: str, number: int) -> None:
        pass

    return step


@pytest.fixture
def conninfo(postgres_url: str) -> str:
    return parse_url(postgres_url)[0]


@pytest.fixture
def mine(conninfo: str) -> Iterator[Connection]:
    with psycopg.connect(conninfo) as connection:
        yield connection


def claimed(app: App, queue: str = "notes") -> list[str]:
    return [lease.job.id for lease in app.store.claim("w", [queue], 100)]


def status(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> str:
    return connection.info.transaction_status.name


# Commit and rollback ---------------------------------------------------------------------------------------------


def test_a_job_is_claimable_when_the_caller_has_committed_and_not_before(
    app: App, note: JobType[[int], int], mine: Connection
) -> None:
    handle = note.using(mine).enqueue(1)
    assert claimed(app) == []
    with pytest.raises(NotFound, match="its transaction has not committed"):
        handle.status()
    mine.commit()
    assert handle.status() is JobState.READY
    assert claimed(app) == [handle.id]


def test_a_rollback_leaves_nothing(app: App, note: JobType[[int], int], mine: Connection, schema: str) -> None:
    note.using(mine).options(job_id="gone").enqueue(1)
    note.using(mine).enqueue_many([note.call(number) for number in range(5)])
    mine.rollback()
    for table in ("jobs", "ready", "arrivals"):
        assert mine.execute(f"select count(*) from {schema}.{table}".encode()).fetchone() == (0,)
    assert app.store.job("gone") is None
    assert note.options(job_id="gone").enqueue(2).is_duplicate is False


def test_the_callers_writes_and_the_job_are_one(app: App, note: JobType[[int], int], mine: Connection) -> None:
    mine.execute("create temp table orders (id int)")
    mine.commit()
    with mine.transaction(force_rollback=True):
        mine.execute("insert into orders values (1)")
        note.using(mine).enqueue(1)
    assert mine.execute("select count(*) from orders").fetchone() == (0,)
    assert claimed(app) == []


def test_a_rolled_back_savepoint_takes_its_jobs_with_it(app: App, note: JobType[[int], int], mine: Connection) -> None:
    with mine.transaction():
        kept = note.using(mine).enqueue(1)
        with mine.transaction(force_rollback=True):
            note.using(mine).enqueue(2)
    assert claimed(app) == [kept.id]


def test_nothing_is_begun_or_ended_on_the_callers_connection(note: JobType[[int], int], conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as mine:
        note.using(mine).enqueue(1)
        assert status(mine) == "IDLE"
        with mine.transaction():
            note.using(mine).enqueue(2)
            assert status(mine) == "INTRANS"
    with psycopg.connect(conninfo) as mine:
        note.using(mine).enqueue(3)
        assert status(mine) == "INTRANS"
        mine.rollback()


def test_on_an_autocommit_connection_each_call_is_its_own_transaction(
    app: App, note: JobType[[int], int], conninfo: str
) -> None:
    with psycopg.connect(conninfo, autocommit=True) as mine:
        first = note.using(mine).enqueue(1)
        assert claimed(app) == [first.id]


def test_in_a_failed_transaction_psycopg_says_so(note: JobType[[int], int], mine: Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        mine.execute("select * from nothing_of_this_name")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        note.using(mine).enqueue(1)
    assert status(mine) == "INERROR"


def test_a_lost_connection_is_the_callers_error_and_is_not_repeated(
    app: App, note: JobType[[int], int], mine: Connection, admin: Connection
) -> None:
    note.using(mine).enqueue(1)
    admin.execute("select pg_terminate_backend(%s)", [mine.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        note.using(mine).enqueue(2)
    assert mine.closed
    assert claimed(app) == []


async def test_async_connections_commit_and_roll_back_too(app: App, note: JobType[[int], int], conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as mine:
        await note.using(mine).aenqueue(1)
        await mine.rollback()
        kept = await note.using(mine).aenqueue(2)
        many = await note.using(mine).aenqueue_many([note.call(number) for number in range(3)])
        assert status(mine) == "INTRANS"
        assert claimed(app) == []
        await mine.commit()
        assert sorted(claimed(app)) == sorted([kept.id, *(one.id for one in many)])
        assert await kept.astatus() is JobState.LEASED


# Answers ---------------------------------------------------------------------------------------------------------


@rule("E2", "E4")
def test_duplicates_and_conflicts_are_answered_as_ever(note: JobType[[int], int], mine: Connection) -> None:
    note.options(job_id="one").enqueue(1)
    assert note.using(mine).options(job_id="one").enqueue(1).is_duplicate
    assert not note.using(mine).options(job_id="two").enqueue(2).is_duplicate
    assert note.options(job_id="two").using(mine).enqueue(2).is_duplicate
    with pytest.raises(JobConflict):
        note.using(mine).options(job_id="one").enqueue(7)
    assert status(mine) == "INTRANS"
    mine.rollback()


@rule("E6")
def test_a_batch_answers_item_by_item_in_the_callers_transaction(note: JobType[[int], int], mine: Connection) -> None:
    first, again = note.options(job_id="x").call(1), note.options(job_id="x").call(1)
    handles = note.using(mine).enqueue_many([first, again, note.call(2)])
    assert [type(handle.outcome) for handle in handles] == [c.Enqueued, c.Duplicate, c.Enqueued]
    assert note.using(mine).enqueue_many([]) == []
    mine.rollback()


def test_a_wrong_call_fails_before_the_connection_is_touched(note: JobType[[int], int], mine: Connection) -> None:
    with pytest.raises(Invalid, match="argument 'number'"):
        note.using(mine).enqueue("one")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="priority"):
        note.using(mine).options(priority=12)
    assert status(mine) == "IDLE"


@rule("I7")
def test_a_queue_of_acquire_takes_no_job_in_a_transaction_either(
    app: App, note: JobType[[int], int], mine: Connection
) -> None:
    app.store.acquire([c.AcquireRequest("notes", "d", 1, "w", "t")])
    with pytest.raises(QueueRefused, match="used with acquire"):
        note.using(mine).enqueue(1)
    assert status(mine) == "IDLE"


def test_the_use_of_a_queue_is_not_locked_by_a_long_transaction(
    note: JobType[[int], int], mine: Connection, postgres_url: str
) -> None:
    note.using(mine).enqueue(1)
    with PostgresStore(f"{postgres_url}&lock_timeout_s=0.2&retry_for_s=0.2") as other:
        other.pause("notes", by="me", reason="to touch its row")
        other.resume("notes", by="me", reason="to touch its row")
    mine.rollback()


# Whatever the caller's connection is set to ---------------------------------------------------------------------


class Odd(Loader):
    def load(self, data: Any) -> Decimal:
        return Decimal(-1)


def test_settings_of_the_callers_connection_do_not_matter(app: App, note: JobType[[int], int], conninfo: str) -> None:
    with psycopg.connect(conninfo, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as mine:
        mine.execute("set search_path to nowhere")
        mine.adapters.register_loader("int8", Odd)
        mine.adapters.register_loader("text", Odd)
        mine.prepare_threshold = None
        known = note.options(job_id="known").using(mine).enqueue(1)
        assert note.options(job_id="known").using(mine).enqueue(1).is_duplicate
        mine.prepare_threshold = 0
        handles = [known, *(note.using(mine).enqueue(number) for number in range(3))]
    assert sorted(claimed(app)) == sorted(handle.id for handle in handles)


def test_a_pipeline_of_the_callers_is_kept_open(app: App, note: JobType[[int], int], mine: Connection) -> None:
    with mine.pipeline():
        mine.execute("select 1")
        handle = note.using(mine).enqueue(1)
        mine.execute("select 2")
    mine.commit()
    assert claimed(app) == [handle.id]


def test_another_encoding_is_refused(note: JobType[[int], int], conninfo: str) -> None:
    with (
        psycopg.connect(conninfo, client_encoding="latin1") as mine,
        pytest.raises(Invalid, match="client_encoding=utf8"),
    ):
        note.using(mine).enqueue(1)


def test_a_connection_to_another_database_is_told_so(
    note: JobType[[int], int], server_url: str, admin: Connection
) -> None:
    admin.execute("drop database if exists elsewhere")
    admin.execute("create database elsewhere")
    conninfo, _ = parse_url(server_url.replace("/postgres", "/elsewhere"))
    try:
        with psycopg.connect(conninfo) as mine, pytest.raises(Refused, match="the store's own database"):
            note.using(mine).enqueue(1)
    finally:
        admin.execute("drop database elsewhere")


async def test_each_kind_of_connection_has_its_call(note: JobType[[int], int], mine: Connection, conninfo: str) -> None:
    with pytest.raises(Invalid, match="block the event loop"):
        await note.using(mine).aenqueue(1)
    async with await psycopg.AsyncConnection.connect(conninfo) as theirs:
        with pytest.raises(Invalid, match=r"await job\.using\(connection\)\.aenqueue"):
            note.using(theirs).enqueue(1)
    with pytest.raises(Invalid, match=r"take a connection of psycopg"):
        note.using(object()).enqueue(1)


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_other_stores_say_that_they_have_no_transaction_to_join(scheme: str, tmp_path: Path, mine: Connection) -> None:
    with App(store=open_store(f"{scheme}:{tmp_path}")) as app:

        @app.job
        def anything() -> None: ...

        with pytest.raises(Invalid, match="needs a store on PostgreSQL"):
            anything.using(mine).enqueue()


def test_a_producers_role_needs_only_the_rights_the_guide_names(
    app: App, note: JobType[[int], int], step: JobType[[str, int], None], conninfo: str, admin: Connection, schema: str
) -> None:
    admin.execute("drop role if exists leasemill_producer")
    admin.execute("create role leasemill_producer")
    try:
        for right in (
            f"usage on schema {schema}",
            f"insert, select on {schema}.jobs",
            f"insert on {schema}.ready, {schema}.arrivals",
            f"usage on sequence {schema}.seq",
        ):
            admin.execute(f"grant {right} to leasemill_producer".encode())
        with psycopg.connect(conninfo) as mine:
            mine.execute("set role leasemill_producer")
            handles = [note.using(mine).options(job_id="one").enqueue(1), step.using(mine).enqueue("a", 1)]
            assert note.using(mine).options(job_id="one").enqueue(1).is_duplicate
        assert [handle.status() for handle in handles] == [JobState.READY] * 2
    finally:
        admin.execute("drop owned by leasemill_producer")
        admin.execute("drop role leasemill_producer")


# Waking, lanes, locks --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_notified")
async def test_an_idle_worker_is_woken_when_the_caller_commits(
    app: App, note: JobType[[int], int], step: JobType[[str, int], None], conninfo: str
) -> None:
    async with working(app), await psycopg.AsyncConnection.connect(conninfo) as mine:
        await until(lambda: is_listening(app.store))
        for number in range(8):
            handle = (
                await note.using(mine).aenqueue(number)
                if number % 2
                else await step.using(mine).aenqueue("one", number)
            )
            await mine.commit()
            await until(partial(has_succeeded, handle))


@rule("N1", "N2", "N3")
def test_an_open_transaction_blocks_neither_an_ack_nor_its_lane(
    app: App, step: JobType[[str, int], None], mine: Connection
) -> None:
    head = step.enqueue("a", 1)
    (lease,) = app.store.claim("w", ["steps"], 5)
    late = step.using(mine).enqueue("a", 2)
    done: list[Any] = []
    acking = threading.Thread(target=lambda: done.append(app.store.ack([c.AckReport(head.id, lease.token)])))
    acking.start()
    acking.join(30)
    assert done, "the ack waits for the caller's transaction"
    after = step.enqueue("a", 3)
    assert claimed(app, "steps") == [after.id]
    mine.commit()
    assert claimed(app, "steps") == []
    lease_of_after = app.store.job(after.id)
    assert lease_of_after is not None
    app.store.ack([c.AckReport(after.id, lease_of_after.executions[-1].token)])
    assert claimed(app, "steps") == [late.id]


@rule("N2")
async def test_no_job_is_stranded_that_commits_as_its_lanes_head_ends(app: App, conninfo: str) -> None:
    """Producers commit at random moments beside a worker that ends heads as fast as it can."""
    seen: dict[str, list[int]] = {}

    @app.job(queue="steps", lane="lane")
    async def step(lane: str, number: int) -> None:
        seen.setdefault(lane, []).append(number)

    def produce(lane: str) -> None:
        with psycopg.connect(conninfo) as mine:
            for number in range(LANE_JOBS):
                step.using(mine).enqueue(lane, number)
                time.sleep(0.001 * (number % 3))
                mine.commit()

    async with working(app):
        await asyncio.gather(*(asyncio.to_thread(produce, lane) for lane in ("a", "b", "c")))
    await asyncio.wait_for(Worker(app, drain=True, handle_signals=False).run(), 60)
    assert seen == {lane: list(range(LANE_JOBS)) for lane in ("a", "b", "c")}
