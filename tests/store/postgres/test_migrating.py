"""Migrations while others hold locks: who gives way, what is reported, and what stays."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from leasemill.errors import Unavailable
from leasemill.store.postgres.admin.locks import LOCK_TIMEOUT_MS, keep_trying
from leasemill.store.postgres.admin.migrate import Migration, applied, migrate, migrations
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.store import PostgresStore
from tests.store.postgres.conftest import with_option

SCHEMA = "leasemill_behind"
LIMIT_S = 60.0
LATEST = [one.version for one in migrations()]
ON_RECORD = [version for version in LATEST if not 8 <= version <= 21]
"""What a schema that is up to date has: version 24 removes those of builds that must not open it."""
Admin = psycopg.Connection[Any]


@pytest.fixture
def behind(server_url: str, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A schema as version 0.1.0 left it, with version 7 of the tables."""
    admin.execute(f"drop schema if exists {SCHEMA} cascade".encode())
    with monkeypatch.context() as as_it_was:
        as_it_was.setattr("leasemill.store.postgres.admin.migrate.migrations", lambda: migrations()[:7])
        migrate(admin, SCHEMA)
    yield with_option(server_url, f"schema={SCHEMA}")
    admin.execute(f"drop schema if exists {SCHEMA} cascade".encode())


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def migrated(url: str) -> list[Migration]:
    with psycopg.connect(parse_url(url)[0], autocommit=True) as connection:
        return migrate(connection, SCHEMA)


def wait_until_it_waits_for(table: str, admin: Admin, migration: Future[Any]) -> None:
    query = "select from pg_locks where not granted and relation = to_regclass(%s)"
    deadline_s = time.monotonic() + LIMIT_S
    while admin.execute(query, [f"{SCHEMA}.{table}"]).fetchone() is None:
        assert not migration.done(), "it did not wait"
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


@pytest.mark.parametrize(("held", "wanted"), [("leases", "jobs"), ("leases", "executions"), ("queues", "jobs")])
def test_a_migration_gives_way_to_a_transaction_that_would_wait_for_it(
    behind: str, admin: Admin, thread: ThreadPoolExecutor, held: str, wanted: str
) -> None:
    """As an ack or a block of ctx.commit() does: it reads one table, and then another that migrations have changed."""
    with psycopg.connect(parse_url(behind)[0]) as worker:
        worker.execute(f"select from {SCHEMA}.{held}".encode())
        migration = thread.submit(migrated, behind)
        wait_until_it_waits_for(held, admin, migration)
        worker.execute(f"select from {SCHEMA}.{wanted}".encode())
        worker.commit()
    assert [one.version for one in migration.result(LIMIT_S)] == LATEST[7:]
    assert applied(admin, SCHEMA) == ON_RECORD


def test_a_migration_reports_which_session_it_waits_for_and_goes_on_when_that_has_ended(
    behind: str, admin: Admin
) -> None:
    with psycopg.connect(parse_url(behind)[0], application_name="a report") as reader:
        reader.execute(f"select from {SCHEMA}.executions".encode())
        reported: list[str] = []

        def end_it(sentence: str) -> None:
            reported.append(sentence)
            reader.commit()

        done = migrate(admin, SCHEMA, on_wait=end_it)
        assert [one.version for one in done] == LATEST[7:]
        (sentence,) = reported
        assert sentence.startswith(
            f"migration 0015_deaths waits for a lock held by session {reader.info.backend_pid} "
            f"(user {reader.info.user}, application a report, idle in transaction, its transaction open for "
        )


def test_a_migration_that_gives_up_names_the_session_and_keeps_what_was_applied(behind: str, admin: Admin) -> None:
    with psycopg.connect(parse_url(behind)[0]) as reader:
        reader.execute(f"select from {SCHEMA}.executions".encode())
        time.sleep(LOCK_TIMEOUT_MS / 1000)  # what is open for less is not listed: it may have ended by then
        session = f"session {reader.info.backend_pid}"
        with pytest.raises(
            Unavailable, match=rf"migration 0015_deaths was not applied .* {session} .* repeat the command"
        ):
            migrate(admin, SCHEMA, patience_s=0)
        assert applied(admin, SCHEMA) == LATEST[:14]
        reader.rollback()
    assert [one.version for one in migrate(admin, SCHEMA)] == LATEST[14:]


def test_a_migration_waits_for_another_that_is_under_way(behind: str, admin: Admin) -> None:
    with psycopg.connect(parse_url(behind)[0]) as other:
        other.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"leasemill migrate {SCHEMA}"])
        reported: list[str] = []

        def end_it(sentence: str) -> None:
            reported.append(sentence)
            other.commit()

        assert [one.version for one in migrate(admin, SCHEMA, on_wait=end_it)] == LATEST[7:]
        assert f"waits for a lock held by session {other.info.backend_pid} (" in reported[0]
        assert ", migrating, " in reported[0]


def test_a_store_that_migrates_itself_waits_too_and_logs_what_for(
    behind: str, admin: Admin, thread: ThreadPoolExecutor
) -> None:
    logged = threading.Event()
    messages: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())
            logged.set()

    handler = Listening(logging.WARNING)
    logging.getLogger("leasemill.postgres").addHandler(handler)
    try:
        with psycopg.connect(parse_url(behind)[0]) as reader:
            reader.execute(f"select from {SCHEMA}.jobs".encode())
            opening = thread.submit(PostgresStore, with_option(behind, "auto_migrate=1"))
            assert logged.wait(LIMIT_S)
            reader.rollback()
        opening.result(LIMIT_S).close()
    finally:
        logging.getLogger("leasemill.postgres").removeHandler(handler)
    assert messages[0].startswith("migration 0008_rules waits for a lock held by session ")
    assert applied(admin, SCHEMA) == ON_RECORD


class _NotFree(Exception):
    sqlstate = "55P03"


@pytest.mark.parametrize(("user", "second_ms"), [(None, 1_000 + LOCK_TIMEOUT_MS), ("app", LOCK_TIMEOUT_MS)])
def test_only_for_autovacuum_a_lock_is_waited_for_as_long_as_the_server_takes_to_cancel_it(
    user: str | None, second_ms: int
) -> None:
    """Others are given way to before the server looks for deadlocks."""
    given: list[int] = []

    def attempt(lock_timeout_ms: int) -> str:
        given.append(lock_timeout_ms)
        if len(given) == 1:
            raise _NotFree
        return "done"

    def query(text: str, _values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return [(1_000,)] if "deadlock_timeout" in text else [(4711, user, None, None, None, False)]

    assert keep_trying(attempt, query, SCHEMA, lambda: "it", _ignore) == "done"
    assert given == [LOCK_TIMEOUT_MS, second_ms]


def test_an_error_that_is_not_about_locks_is_passed_on_at_once() -> None:
    def attempt(_lock_timeout_ms: int) -> str:
        raise ZeroDivisionError

    refuse: Callable[..., Any] = pytest.fail
    with pytest.raises(ZeroDivisionError):
        keep_trying(attempt, refuse, SCHEMA, lambda: "it", refuse)


def _ignore(_sentence: str) -> None:
    pass
