"""One PostgreSQL server for all tests here, and an empty schema for each.

`LEASEMILL_TEST_POSTGRES_URL` names another server; `LEASEMILL_TEST_POSTGRES_BIN` other binaries to make one from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from leasemill.store.postgres.admin.migrate import migrate
from leasemill.store.postgres.driver.url import parse_url
from leasemill.testing.postgres import PostgresServer

TABLES = (
    *("queues", "jobs", "ready", "leases", "executions", "kept", "marks", "arrivals", "waiting", "lanes"),
    *("groups", "group_joins", "schedules"),
    *("limits", "limit_queues", "rates", "places", "parked", "lines", "gates"),
    *("requests", "finished", "refusals", "actions", "tallies", "workers", "waiters", "watermarks", "unique_keys"),
    "access_keys",
    "worker_orders",
)


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A server whose fsync is off: these tests stop nothing."""
    given = os.environ.get("LEASEMILL_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    with PostgresServer(settings={"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}) as server:
        yield server.url()


@pytest.fixture(scope="session")
def admin(server_url: str) -> Iterator[psycopg.Connection[Any]]:
    conninfo, _ = parse_url(server_url)
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as connection:  # there may be a pooler
        yield connection


@pytest.fixture(scope="session")
def schema(admin: psycopg.Connection[Any]) -> Iterator[str]:
    name = f"leasemill_test_{os.getpid()}"
    admin.execute(f"drop schema if exists {name} cascade".encode())
    migrate(admin, name)
    yield name
    admin.execute(f"drop schema if exists {name} cascade".encode())


@pytest.fixture
def postgres_url(server_url: str, schema: str, admin: psycopg.Connection[Any]) -> str:
    """A migrated schema without a row."""
    admin.execute(";".join(f"delete from {schema}.{table}" for table in TABLES).encode())
    return with_option(server_url, f"schema={schema}")


@pytest.fixture
def bank(admin: psycopg.Connection[Any], schema: str) -> Iterator[psycopg.Connection[Any]]:
    """The user's own tables, in the database of the store."""
    admin.execute("drop table if exists balance")
    admin.execute("create table balance (account text primary key, cents int8)")
    admin.execute("insert into balance values ('ann', 0)")
    yield admin
    admin.execute("drop table if exists balance")


@pytest.fixture(scope="session", autouse=True)
def told_version(admin: psycopg.Connection[Any], record_testsuite_property: Any) -> None:
    row = admin.execute("show server_version").fetchone()
    record_testsuite_property("postgresql", row[0] if row else "unknown")


@pytest.fixture
def only_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for jobs by himself: a worker that finds one was notified."""
    monkeypatch.setattr("leasemill.worker.decisions.POLL_S", 3600.0)
    monkeypatch.setattr("leasemill.store.postgres.waking.watch.LOOK_EVERY_S", 3600.0)
