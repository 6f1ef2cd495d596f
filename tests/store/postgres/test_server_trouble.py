"""Servers that run out of something, end idle sessions or become read-only: callers wait, and nothing ends for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from leasemill import App, JobState
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, Policy
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.postgres import PostgresServer
from tests.lab.processes import wait_until
from tests.store.postgres.conftest import with_option
from tests.worker.support import until, working

Admin = psycopg.Connection[Any]

CODES = {
    "disk_full": "could not extend file: No space left on device",
    "out_of_memory": "out of memory",
    "configuration_limit_exceeded": "temporary file size exceeds temp_file_limit",
    "io_error": "could not read block 7 in file: Input/output error",
    "system_error": "could not open file",
    "query_canceled": "canceling statement due to statement timeout",
}


@contextmanager
def failing(admin: Admin, schema: str, table: str, condition: str) -> Iterator[None]:
    """Every statement that writes to this table fails so."""
    admin.execute(
        f"create function {schema}.fail() returns trigger language plpgsql as "
        f"$$ begin raise exception '{CODES[condition]}' using errcode = '{condition}'; end $$".encode()
    )
    admin.execute(
        f"create trigger fail before insert or update on {schema}.{table} for each statement "
        f"execute function {schema}.fail()".encode()
    )
    try:
        yield
    finally:
        admin.execute(f"drop function {schema}.fail() cascade".encode())


@pytest.mark.parametrize("condition", CODES)
async def test_a_server_that_runs_out_of_something_is_unavailable_until_it_has_it_again(
    postgres_url: str, schema: str, admin: Admin, condition: str
) -> None:
    job = c.Enqueue([JobSpec("job", "q", "k")])
    with PostgresStore(postgres_url) as store:
        with failing(admin, schema, "jobs", condition):
            with pytest.raises(Unavailable, match=CODES[condition]):
                store.run(job)
            with pytest.raises(Unavailable, match=CODES[condition]):
                await store.arun(job)
        assert await store.arun(job) == [c.Enqueued("job")]


async def test_a_worker_goes_on_after_its_servers_disk_was_full(
    postgres_url: str, schema: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    with App(postgres_url) as app:

        @app.job
        async def work() -> None: ...

        async with working(app):
            with failing(admin, schema, "leases", "disk_full"):
                handle = await work.aenqueue()
                await until(lambda: "the store is unavailable, will retry the claim" in caplog.text)
            assert await handle.await_end(30) is JobState.SUCCEEDED


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """One whose settings may be changed."""
    with PostgresServer(settings={"fsync": "off"}) as server:
        yield server


def sessions(admin: Admin) -> int:
    row = admin.execute("select count(*) from pg_stat_activity where application_name = 'leasemill'").fetchone()
    assert row is not None
    return int(row[0])


async def test_sessions_that_the_server_ends_for_being_idle_are_replaced(own_server: PostgresServer) -> None:
    with psycopg.connect(own_server.url(), autocommit=True) as admin:
        admin.execute("create role app login superuser")
        admin.execute("alter role app set idle_session_timeout = '50ms'")
        url = own_server.url().replace("//leasemill@", "//app@")
        with PostgresStore(with_option(url, "auto_migrate=1&listen=0")) as store:
            for number in range(6):
                wait_until(lambda: sessions(admin) == 0, "idle sessions to end")
                job = c.Enqueue([JobSpec(f"j{number}", "q", "k")])
                (enqueued,) = store.run(job) if number % 2 else await store.arun(job)
                assert isinstance(enqueued, c.Enqueued | c.Duplicate)
            wait_until(lambda: sessions(admin) == 0, "idle sessions to end")
            assert len(await store.arun(c.Claim("w", ["q"], 10, [f"{n}" * 8 for n in range(10)], "request"))) == 6


def test_after_a_failover_that_keeps_old_sessions_calls_reach_the_server_that_writes(
    own_server: PostgresServer,
) -> None:
    """The sessions of a primary that became a standby stay open, and read-only; new ones reach the new primary."""
    with (
        psycopg.connect(own_server.url(), autocommit=True) as admin,
        PostgresStore(with_option(own_server.url(), "auto_migrate=1")) as store,
    ):
        store.enqueue([JobSpec("before", "q", "k")])
        admin.execute("alter role leasemill set default_transaction_read_only = off")  # of new sessions
        admin.execute("alter system set default_transaction_read_only = on")  # of those there are
        admin.execute("select pg_reload_conf()")
        (session,) = store._connections._pool._idle
        wait_until(lambda: _is_read_only(session), "the server to read its settings")
        with pytest.raises(Unavailable, match="read-only"):
            store.enqueue([JobSpec("during", "q", "k")])
        assert store.enqueue([JobSpec("after", "q", "k")]) == [c.Enqueued("after")]


def _is_read_only(connection: psycopg.Connection[Any]) -> bool:
    return connection.execute("show default_transaction_read_only").fetchone() == ("on",)


def test_a_role_for_which_null_is_a_text_in_arrays_can_be_used(own_server: PostgresServer) -> None:
    with psycopg.connect(own_server.url(), autocommit=True) as admin:
        admin.execute("create role literal login superuser")
        admin.execute("alter role literal set array_nulls = off")
    url = own_server.url().replace("//leasemill@", "//literal@")
    with PostgresStore(with_option(url, "auto_migrate=1")) as store:
        store.enqueue([JobSpec("one", "q", "k", policy=Policy(max_retries=1))])
        (lease,) = store.claim("w", ["q"], 1)
        assert lease.terms.max_retries == 1
        (outcome,) = store.nack([c.NackReport("one", lease.token, "broke", jitter=0.0)])
        assert isinstance(outcome, c.Nacked)
        assert outcome.state is JobState.READY
