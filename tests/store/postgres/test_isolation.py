"""Another default isolation of the server: the store's transactions are READ COMMITTED all the same.

What waited for a lock must see what was committed meanwhile; a snapshot of before would leave a lane's job behind for
ever. A caller's own transaction keeps the isolation the caller chose.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.errors import SerializationFailure

from leasemill import App, JobState
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.postgres import admission
from leasemill.store.postgres.admin.check import check
from leasemill.store.postgres.admin.migrate import migrate
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.insert import insert_jobs
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.walk import Model, Walk, asked
from tests.store.postgres.conftest import TABLES
from tests.store.postgres.open_transaction import open_transaction

LEVELS = ("repeatable read", "serializable")
LIMIT_S = 60
Admin = psycopg.Connection[Any]


@pytest.fixture(params=LEVELS)
def default_isolation(request: pytest.FixtureRequest, admin: Admin) -> Iterator[str]:
    """Of every session that begins from now on, unless it asks for another."""
    level: str = request.param
    (database,) = admin.execute("select current_database()").fetchone() or ("",)
    setting = f'alter role current_user in database "{database}" set default_transaction_isolation = '
    admin.execute(f"{setting} '{level}'".encode())
    yield level
    admin.execute(f"{setting} default".encode())


@pytest.fixture
def levels_used(admin: Admin, schema: str) -> Iterator[Callable[[], set[str]]]:
    """The isolation levels of all transactions that have written to the store's tables."""
    log = f"{schema}_isolation"
    admin.execute(f"create table {log} (level text)".encode())
    admin.execute(
        f"create function {log}() returns trigger language plpgsql as $$ begin "
        f"insert into {log} values (current_setting('transaction_isolation')); return null; end $$".encode()
    )
    for table in TABLES:
        trigger = f"after insert or update or delete on {schema}.{table} for each statement execute function {log}()"
        admin.execute(f"create trigger {log} {trigger}".encode())
    yield lambda: {level for (level,) in admin.execute(f"select distinct level from {log}".encode())}
    admin.execute(f"drop function {log} cascade; drop table {log}".encode())


def test_every_transaction_of_the_store_is_read_committed(
    postgres_url: str, default_isolation: str, levels_used: Callable[[], set[str]]
) -> None:
    clock, model = ManualClock(), Model()
    commands = Walk(random.Random(default_isolation))
    with PostgresStore(postgres_url, clock=clock) as store:
        for _ in range(300):
            command = commands.next(model.state)
            model.answer(command, clock.now())
            asked(store, command)
            clock.advance(us=400_000)
    assert levels_used() == {"read committed"}


def await_waiting(admin: Admin, application: str) -> None:
    """Until a session of this name waits for a lock."""
    deadline = time.monotonic() + LIMIT_S
    query = "select count(*) from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"
    while admin.execute(query, [application]).fetchone() == (0,):
        assert time.monotonic() < deadline, f"{application} waits for no lock"
        time.sleep(0.005)


@rule("N3", "N4")
@pytest.mark.parametrize("settings", ["true", "false"], ids=["", "where options are not taken"])
def test_the_next_of_a_lane_is_not_stranded_under_another_default_isolation(
    postgres_url: str, schema: str, admin: Admin, default_isolation: str, settings: str
) -> None:
    """It is admitted, and its transaction still open, when the head is acknowledged."""
    url = f"{postgres_url}&session_settings={settings}"
    with PostgresStore(url) as producer, PostgresStore(f"{url}&application_name=acking") as store:
        store.enqueue([JobSpec("head", "q", "k", lane="a")])
        (lease,) = store.claim("w", ["q"], 1)
        acked: list[c.AckOutcome] = []
        acking = threading.Thread(target=lambda: acked.extend(store.ack([c.AckReport("head", lease.token)])))
        with open_transaction(producer) as transaction:
            transaction.run(insert_jobs([JobSpec("next", "q", "k", lane="a")], None))
            transaction.run(admission.admit(producer._known))
            acking.start()
            await_waiting(admin, "acking")
        acking.join(LIMIT_S)
        assert acked == [c.Acked("head", c.LaneHint("next", None))]
        assert [one.job.id for one in store.claim("w", ["q"], 1)] == ["next"]
        assert check(admin, schema) == []


@rule("X6")
def test_a_users_commit_block_is_read_committed(postgres_url: str, default_isolation: str) -> None:
    with PostgresStore(postgres_url) as store:
        store.enqueue([JobSpec("a", "q", "k")])
        (lease,) = store.claim("w", ["q"], 1)
        block = store.block(lease, 10.0)
        assert block.begin() is None
        connection = block.connection
        assert isinstance(connection, psycopg.Connection)
        assert connection.execute("show transaction_isolation").fetchone() == ("read committed",)
        assert block.commit(c.Commit("a", lease.token)) == c.Committed("a", ())


def test_tables_are_made_once_by_two_who_begin_together(
    postgres_url: str, schema: str, admin: Admin, default_isolation: str
) -> None:
    name = f"{schema}_twice"
    conninfo, _ = parse_url(postgres_url)
    applied: list[int] = []

    def second() -> None:
        with psycopg.connect(conninfo, autocommit=True, application_name="migrating") as connection:
            applied.append(len(migrate(connection, name)))

    migrating = threading.Thread(target=second)
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            with connection.transaction():
                migrate(connection, name)
                migrating.start()
                await_waiting(admin, "migrating")
        migrating.join(LIMIT_S)
        assert applied == [0]
    finally:
        admin.execute(f"drop schema if exists {name} cascade".encode())


# A caller's own transaction ----------------------------------------------------------------------------------------


@rule("E1", "N2")
@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_jobs_enqueued_in_a_stricter_transaction_of_the_caller_are_claimed_in_their_lanes_order(
    postgres_url: str, schema: str, admin: Admin, level: psycopg.IsolationLevel
) -> None:
    """Its snapshot is older than the lane's head, whose end it meets, and than the queue."""
    conninfo, _ = parse_url(postgres_url)
    with App(postgres_url) as app, psycopg.connect(conninfo) as mine:

        @app.job(queue="steps", lane="lane")
        async def step(lane: str, number: int) -> None: ...

        mine.isolation_level = level
        mine.execute("select count(*) from pg_class")
        head = step.enqueue("a", 0)
        first, second = (step.using(mine).enqueue("a", number) for number in (1, 2))
        (lease,) = app.store.claim("w", ["steps"], 5)
        assert lease.job.id == head.id
        app.store.ack([c.AckReport(lease.job.id, lease.token)])
        assert app.store.claim("w", ["steps"], 5) == []
        mine.commit()
        for handle in (first, second):
            (lease,) = app.store.claim("w", ["steps"], 5)
            assert lease.job.id == handle.id
            app.store.ack([c.AckReport(lease.job.id, lease.token)])
        assert check(admin, schema) == []


@rule("E2")
@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_an_id_that_came_after_the_callers_snapshot_fails_that_transaction_and_its_repeat_is_a_duplicate(
    postgres_url: str, level: psycopg.IsolationLevel
) -> None:
    conninfo, _ = parse_url(postgres_url)
    with App(postgres_url) as app, psycopg.connect(conninfo) as mine:

        @app.job(queue="notes")
        async def note(number: int) -> None: ...

        mine.isolation_level = level
        mine.execute("select count(*) from pg_class")
        note.options(job_id="one").enqueue(1)
        with pytest.raises(SerializationFailure):
            note.using(mine).options(job_id="one").enqueue(1)
        mine.rollback()
        repeated = note.using(mine).options(job_id="one").enqueue(1)
        mine.commit()
        assert repeated.id == "one"
        assert [one.job.id for one in app.store.claim("w", ["notes"], 5)] == ["one"]
        assert repeated.status() is JobState.LEASED
