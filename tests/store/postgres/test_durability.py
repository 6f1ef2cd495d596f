"""How durable a COMMIT of ours is, whatever the role's setting is, and what is reported of the server's settings."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.pq import ExecStatus, PGconn

from leasemill import App, Context, Worker
from leasemill.cli import main
from leasemill.errors import Invalid
from leasemill.kernel.model import JobSpec
from leasemill.store.postgres.admin.durability import Durability, durability
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.postgres import SUPERUSER
from leasemill.testing.rules import rule
from tests.lab.postgres import KillableServer
from tests.store.postgres.conftest import with_option

SHOW = "select current_setting('synchronous_commit')"
SAFE = Durability("on", "on", "on", "", 0)
Admin = psycopg.Connection[Any]


@pytest.fixture
def url_with(postgres_url: str, admin: Admin) -> Iterator[Callable[[str], str]]:
    """The store's URL for a role that has this setting of synchronous_commit."""
    role = f"leasemill_sync_{os.getpid()}"
    admin.execute(f"create role {role} login superuser".encode())

    def url(setting: str) -> str:
        admin.execute(f"alter role {role} set synchronous_commit = {setting}".encode())
        return postgres_url.replace(f"//{SUPERUSER}@", f"//{role}@")

    yield url
    admin.execute(f"drop role {role}".encode())


def setting_of(store: PostgresStore) -> str:
    ((setting,),) = store._thread_driver.with_connection(lambda connection: connection.execute(SHOW).fetchall())
    return str(setting)


@rule("E1")
@pytest.mark.parametrize(("setting", "used"), [
    ("off", "on"), ("local", "local"), ("remote_write", "remote_write"), ("on", "on"), ("remote_apply", "remote_apply"),
])  # fmt: skip
def test_a_session_of_the_store_raises_off_and_lowers_nothing(
    url_with: Callable[[str], str], setting: str, used: str
) -> None:
    with PostgresStore(url_with(setting)) as store:
        assert setting_of(store) == used


@pytest.mark.parametrize("chosen", ["off", "local", "remote_write", "on", "remote_apply"])
def test_the_url_chooses_what_the_sessions_set(url_with: Callable[[str], str], chosen: str) -> None:
    with PostgresStore(with_option(url_with("off"), f"synchronous_commit={chosen}")) as store:
        assert setting_of(store) == chosen
    with pytest.raises(Invalid, match="an option of the store's URL is wrong"):
        parse_url("postgresql://host/db?synchronous_commit=maybe")


@pytest.mark.parametrize("is_pooled", [False, True], ids=["direct", "behind a pooler"])
def test_every_block_of_a_commit_is_as_durable_also_behind_a_pooler(
    url_with: Callable[[str], str],
    is_pooled: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if is_pooled:
        monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 0)
    caplog.set_level(logging.INFO, "leasemill.postgres")
    seen: list[str] = []
    with App(url_with("off")) as app:

        @app.job
        def sync(ctx: Context) -> None:
            with ctx.commit() as tx:
                seen.extend(row[0] for row in tx.execute(SHOW).fetchall())

        @app.job
        async def loop(ctx: Context) -> None:
            async with ctx.commit() as tx:
                seen.extend(row[0] for row in await (await tx.execute(SHOW)).fetchall())

        for job in (sync, sync, loop, loop):
            job.enqueue()
        Worker(app, drain=True, handle_signals=False, concurrency=1).run_sync()
        assert isinstance(app.store, PostgresStore)
        assert setting_of(app.store) == ("off" if is_pooled else "on")
    assert seen == ["on"] * 4
    levels = [record.levelno for record in caplog.records if "synchronous_commit is off" in record.getMessage()]
    assert levels == [logging.WARNING if is_pooled else logging.INFO]


def test_a_transaction_of_the_user_keeps_its_own_setting(url_with: Callable[[str], str]) -> None:
    url = url_with("off")
    with PostgresStore(url) as store, psycopg.connect(parse_url(url)[0]) as mine:
        store.using(mine).enqueue([JobSpec("job", "q", "k")])
        assert mine.execute(SHOW).fetchall() == [("off",)]


@rule("E1")
def test_what_was_accepted_is_there_after_a_crash_although_the_role_commits_asynchronously() -> None:
    server = KillableServer(settings={"wal_writer_delay": "10s", "max_connections": "20"})
    try:
        server.start()
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(f"alter role {SUPERUSER} set synchronous_commit = off")
        ids = [f"job-{number}" for number in range(20)]
        with PostgresStore(with_option(server.url(), "auto_migrate=1")) as store:
            for job_id in ids:
                store.enqueue([JobSpec(job_id, "q", "k")])
            server.kill()
        server.start()
        with PostgresStore(server.url()) as store:
            assert [job_id for job_id in ids if store.job(job_id) is None] == []
    finally:
        server.close()


# What is reported ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("found", "warning"), [
    (SAFE, None),
    (Durability("off", "on", "on", "", 0), "fsync is off"),
    (Durability("on", "off", "on", "", 0), "full_page_writes is off"),
    (Durability("on", "on", "off", "", 0), "synchronous_commit is off for this role"),
])  # fmt: skip
def test_a_setting_that_may_lose_jobs_in_a_crash_is_a_warning(found: Durability, warning: str | None) -> None:
    warnings = [*found.warnings(), *found.role_warnings()]
    assert [sentence.partition(":")[0] for sentence in warnings] == ([] if warning is None else [warning])
    assert found.notes() == []


@pytest.mark.parametrize(("names", "commit", "note"), [
    ("", "on", "2 standbys, and synchronous_standby_names is empty: commits do not wait"),
    ("a", "local", "2 standbys, and synchronous_standby_names is set, but synchronous_commit is local: commits do not"),
    ("a", "on", None),
    ("a", "remote_write", None),
])  # fmt: skip
def test_a_standby_that_commits_do_not_wait_for_is_a_note(names: str, commit: str, note: str | None) -> None:
    found = Durability("on", "on", commit, names, 2).notes()
    assert len(found) == (note is not None)
    assert note is None or found[0].startswith(note)


def test_a_standby_that_streams_is_counted(server_url: str, admin: Admin) -> None:
    before = durability(admin).standbys
    standby = PGconn.connect(f"{parse_url(server_url)[0]}&replication=true".encode())
    try:
        position = standby.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2)
        assert position is not None
        assert standby.exec_(b"START_REPLICATION PHYSICAL " + position).status == ExecStatus.COPY_BOTH
        until_s = time.monotonic() + 30
        while durability(admin).standbys != before + 1:  # its sender catches up before it streams
            assert time.monotonic() < until_s, "the standby is not counted"
            time.sleep(0.01)
    finally:
        standby.finish()


def test_check_shows_what_may_be_lost_and_exits_with_0(postgres_url: str) -> None:
    """The server of these tests syncs nothing."""
    done = CliRunner().invoke(main, ["db", "check", "--url", postgres_url])
    assert done.exit_code == 0, done.output
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        assert f"warning: {setting} is off" in done.output
    document = json.loads(CliRunner().invoke(main, ["db", "check", "--json", "--url", postgres_url]).stdout)
    assert [len(document["warnings"]), document["notes"], document["is_sound"]] == [3, [], True]


def test_the_first_run_of_the_reaper_logs_it_once(postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with PostgresStore(postgres_url) as store:
        assert caplog.messages == []
        store.expire()
        store.expire()
    logged = [message.partition(":")[0] for message in caplog.messages]
    assert logged == ["fsync is off", "full_page_writes is off"]
