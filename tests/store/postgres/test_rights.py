"""Roles with the rights that docs/postgres.md lists can do what it says, and what others get is a sentence."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg import errors

from leasemill import App, Context, Debounce, JobState, Retry, Worker
from leasemill.api.handle import JobHandle
from leasemill.api.schedule_commands import pause_schedule
from leasemill.cli import main
from leasemill.errors import Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, LimitTerms, LimitUse, Policy, Rules, Verb
from leasemill.store.factory import open_store
from leasemill.store.postgres.admin.migrate import applied, migrate, migrations
from leasemill.store.postgres.driver.errors import not_let_in, not_reached
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.postgres import SUPERUSER
from leasemill.testing.rules import rule
from tests.lab.processes import wait_until
from tests.store.postgres.conftest import with_option

PAGE = Path(__file__).resolve().parents[3] / "docs" / "postgres.md"
Url = Callable[[str], str]


@pytest.fixture
def url_of(postgres_url: str, schema: str, admin: psycopg.Connection[Any]) -> Iterator[Url]:
    """The store's URL for a role that has what the page grants to a role of that name, and nothing else."""
    made: list[str] = []

    def url(name: str) -> str:
        role = f"leasemill_{name}_{os.getpid()}"
        admin.execute(f"create role {role} login".encode())
        made.append(role)
        for grant in granted(name):
            admin.execute(re.sub(rf"\bto {name}$", f"to {role}", grant.replace("leasemill", schema)).encode())
        assert SUPERUSER in postgres_url
        return postgres_url.replace(f"//{SUPERUSER}@", f"//{role}@")

    yield url
    for role in made:
        admin.execute(f"drop owned by {role}; drop role {role}".encode())


def granted(name: str) -> list[str]:
    blocks = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line.rstrip(";") for block in blocks for line in block.splitlines() if line.endswith(f" to {name};")]


def leasemill(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


# What the page grants --------------------------------------------------------------------------------------------


def test_a_reader_can_look_at_everything_and_change_nothing(url_of: Url, postgres_url: str) -> None:
    with open_store(postgres_url) as store:
        store.enqueue([JobSpec("job", "mail", "send", b"{}", lane="a")])
        store.presence.publish("w", b"{}")
    url = url_of("reader")
    for command in (
        ["stats"], ["jobs", "list"], ["jobs", "show", "job"], ["jobs", "explain", "job"], ["queues", "list"],
        ["lanes", "list", "--queue", "mail"], ["lanes", "show", "mail", "a"], ["actions"], ["workers"],
        ["db", "status"], ["db", "check"], ["cron", "list"], ["keys", "list", "--all"],
    ):  # fmt: skip
        done = leasemill(*command, "--url", url)
        assert done.exit_code == 0, (command, done.output)
    assert "no worker has sent a heartbeat" in leasemill("health", "--url", url).output
    with open_store(url) as store, pytest.raises(Refused, match=r"may not do that .* Rights"):
        store.enqueue([JobSpec("other", "mail", "send")])


def test_an_app_can_enqueue_and_wait_and_claim_nothing(url_of: Url) -> None:
    url = url_of("app")
    with App(url) as app:

        @app.job(lane="who")
        def greet(who: str) -> str:
            return who

        @app.job
        def count(number: int) -> int:
            return number

        @app.job(unique=Debounce(by="document", wait=60, at_most=600))
        def index(document: str, version: int) -> None: ...

        with psycopg.connect(parse_url(url)[0]) as connection:
            assert index.using(connection).enqueue("a", 0).id == index.using(connection).enqueue("a", 1).id
        assert len({index.enqueue("a", version).id for version in range(3)}) == 1
        assert count.options(unique="one").enqueue(1).id == count.options(unique="one").enqueue(2).id
        handles = [greet.enqueue("ann"), greet.enqueue("ann"), greet.options(delay=60).enqueue("bob")]
        assert count.options(job_id="once").enqueue(1).id == count.options(job_id="once").enqueue(1).id
        count.enqueue_many(count.call(number) for number in range(3))
        with psycopg.connect(parse_url(url)[0]) as connection:
            count.using(connection).enqueue(7)
            greet.using(connection).enqueue("cid")
        assert {handle.status() for handle in handles} == {JobState.READY}
        with pytest.raises(TimeoutError):
            handles[0].result(0.1)
        with pytest.raises(Refused, match="Rights"):
            app.store.claim("w", ["default"], 1)


def test_an_app_can_make_groups_and_add_jobs_to_them(url_of: Url) -> None:
    url = url_of("app")
    with PostgresStore(url) as store:
        store.create_group("group", then=ChainedJob("mail", "then"))
        store.enqueue([JobSpec("one", "mail", "send", rules=Rules(group="group"))])
        with psycopg.connect(parse_url(url)[0]) as connection:
            store.using(connection).enqueue([JobSpec("two", "mail", "send", rules=Rules(group="group"))])
        assert store.seal_group("group").total == 2
        store.create_group("empty", then=ChainedJob("mail", "then"))
        assert store.seal_group("empty").is_over


def test_an_app_can_set_schedules(url_of: Url) -> None:
    with App(url_of("app")) as app:

        @app.job
        def tidy() -> None: ...

        app.schedules.set("tidy", "0 3 * * *", tidy.call(), reason="asked for by a customer")
        app.schedules.set("tidy", "0 4 * * *", tidy.call(), reason="later")
        pause_schedule(app.store, "tidy", by="ada", reason="because")
        assert [action.verb for action in app.store.actions()] == [
            Verb.PAUSE_SCHEDULE,
            Verb.SET_SCHEDULE,
            Verb.SET_SCHEDULE,
        ]
        app.store.run(c.RemoveSchedule("tidy", "ada", "because"))
        assert app.store.run(c.ListSchedules(10)) == []


@rule("O9")
@pytest.mark.parametrize(("role", "has_row"), [("reader", False), ("app", True)])
def test_who_may_read_may_wait_and_the_listener_goes_on(
    role: str,
    has_row: bool,
    url_of: Url,
    postgres_url: str,
    schema: str,
    admin: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "leasemill.postgres")
    with PostgresStore(postgres_url) as worker, PostgresStore(url_of(role)) as store, ThreadPoolExecutor(1) as executor:
        worker.enqueue([JobSpec("job", "mail", "send")])
        (lease,) = worker.claim("w", ["mail"], 1)
        waiter = executor.submit(JobHandle[Any](store, "job", None).result, 30)
        wait_until(store._listener.is_listening.is_set, "the listener", 30)
        if has_row:
            count = f"select count(*) from {schema}.waiters".encode()
            wait_until(lambda: admin.execute(count).fetchone() == (1,), "the waiter's row", 30)
        worker.ack([c.AckReport("job", lease.token, b"1")])
        assert waiter.result(30) == 1
    assert "not listening" not in caplog.text


def test_a_worker_can_do_all_that_workers_and_operators_do(url_of: Url) -> None:
    url = url_of("worker")
    with App(url) as app:

        @app.job(retry=Retry(max=1, base=0, cap=0))
        def fails(ctx: Context) -> None:
            raise ValueError("no")

        @app.job(lane="who")
        def greet(ctx: Context, who: str) -> str:
            with ctx.commit() as tx:
                tx.execute("select 1")
                tx.set_result(who)
                tx.enqueue(other)
            return who

        @app.job
        async def other(ctx: Context) -> None:
            async with ctx.commit() as tx:
                await tx.execute("select 1")

        bad, good = fails.enqueue(), [greet.enqueue("ann"), greet.enqueue("ann")]
        Worker(app, drain=True, handle_signals=False).run_sync()
        assert bad.status() is JobState.FAILED
        assert {handle.status() for handle in good} == {JobState.SUCCEEDED}
        store = app.store
        by: dict[str, Any] = {"by": "me", "reason": "test"}
        assert store.redrive(c.JobFilter(job_ids=(bad.id,)), **by).job_ids == (bad.id,)
        store.cancel([bad.id], **by)
        store.set_policy("default", Policy(max_retries=5), **by)
        store.pause("default", **by)
        store.resume("default", **by)
        assert store.purge(c.JobFilter(job_ids=(bad.id,)), **by).job_ids == (bad.id,)
        assert store.prune(2**60, keep=0) == 4
        assert store.acquire([c.AcquireRequest("stream", "a", 1, "w", "t")])
    assert leasemill("db", "check", "--url", url).exit_code == 0


def test_no_function_that_runs_with_its_owners_rights_is_for_everybody(
    admin: psycopg.Connection[Any], schema: str
) -> None:
    query = """select proname, has_function_privilege('public', pg_proc.oid, 'execute')
        from pg_proc join pg_namespace on pg_namespace.oid = pronamespace
        where nspname = %s and prosecdef order by proname"""
    found = dict(admin.execute(query, [schema]).fetchall())
    assert found == dict.fromkeys(
        ["commit", "enqueue", "guard", "lower_watermarks", "mark_at_commit", "use_rules"], False
    )


def test_a_role_that_may_enqueue_keeps_the_functions_that_it_needs(
    server_url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a schema whose grants were made when everybody might execute them; one that only reads loses them."""
    schema, app, reader = "leasemill_rights", f"leasemill_old_app_{os.getpid()}", f"leasemill_old_reader_{os.getpid()}"
    admin.execute(f"drop schema if exists {schema} cascade".encode())
    with monkeypatch.context() as as_it_was:
        as_it_was.setattr("leasemill.store.postgres.admin.migrate.migrations", lambda: migrations()[:21])
        migrate(admin, schema)
    try:
        for role in (app, reader):
            admin.execute(f"create role {role}; grant usage on schema {schema} to {role}".encode())
        admin.execute(f"grant insert on {schema}.jobs to {app}".encode())
        migrate(admin, schema)
        query = """select proname, has_function_privilege(%s, pg_proc.oid, 'execute')
            from pg_proc join pg_namespace on pg_namespace.oid = pronamespace
            where nspname = %s and proname in ('use_rules', 'lower_watermarks')"""
        for role, may in ((app, True), (reader, False)):
            rights = dict(admin.execute(query, [role, schema]).fetchall())
            assert rights == {"use_rules": may, "lower_watermarks": may}
    finally:
        admin.execute(f"drop schema {schema} cascade; drop role if exists {app}, {reader}".encode())


def test_a_role_that_may_only_enqueue_in_sql_changes_no_version_of_the_tables(
    url_of: Url, admin: psycopg.Connection[Any], schema: str
) -> None:
    url = url_of("shop")
    admin.execute(f"grant usage on schema {schema} to leasemill_shop_{os.getpid()}".encode())
    before = applied(admin, schema)
    with psycopg.connect(parse_url(url)[0], autocommit=True) as shop:
        for call in ("use_verbs(1000)", "use_rules()", "lower_watermarks('{q}', '{0}', '{0}')"):
            with pytest.raises(errors.InsufficientPrivilege):
                shop.execute(f"select {schema}.{call}".encode())
    assert applied(admin, schema) == before


# What others get -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["stats"], ["jobs", "list"], ["db", "status"], ["db", "check"], ["health"]])
def test_a_role_without_grants_is_refused_with_what_to_do(url_of: Url, command: list[str]) -> None:
    done = leasemill(*command, "--url", url_of("nobody"))
    assert done.exit_code == 1, done.output
    assert re.search(r"Error: this role may not do that \(permission denied for schema .*\): grant it", done.output)


def test_migrate_by_a_role_that_may_not_is_refused_with_what_to_do(url_of: Url) -> None:
    done = leasemill("db", "migrate", "--url", with_option(url_of("nobody"), "schema=leasemill_elsewhere"))
    assert done.exit_code == 1
    assert "may not do that (permission denied for database" in done.output


def test_migrate_needs_no_more_than_a_schema_of_its_own(url_of: Url, admin: psycopg.Connection[Any]) -> None:
    url = with_option(url_of("nobody"), "schema=leasemill_given")
    admin.execute(f"create schema leasemill_given authorization leasemill_nobody_{os.getpid()}".encode())
    assert leasemill("db", "migrate", "--url", url).exit_code == 0
    with open_store(url) as store:
        store.enqueue([JobSpec("job", "mail", "send")])


def test_enqueuing_in_a_transaction_of_a_role_without_grants_is_refused(postgres_url: str, url_of: Url) -> None:
    with (
        PostgresStore(postgres_url) as store,
        psycopg.connect(parse_url(url_of("nobody"))[0]) as connection,
        pytest.raises(Refused, match="Rights"),
    ):
        store.using(connection).enqueue([JobSpec("job", "mail", "send")])


def test_a_server_that_only_reads_is_unavailable_for_writing(postgres_url: str) -> None:
    url = with_option(postgres_url, "options=-c%20default_transaction_read_only%3Don")
    assert leasemill("stats", "--url", url).exit_code == 0
    done = leasemill("queues", "pause", "mail", "--create", "--reason", "test", "--url", url)
    assert done.exit_code == 3, done.output
    with open_store(url) as store, pytest.raises(Unavailable, match="this server is read-only"):
        store.enqueue([JobSpec("job", "mail", "send")])


@pytest.mark.parametrize(("part", "other", "remedy"), [
    (f"{SUPERUSER}@", "leasemill_unknown@", "create the role"),
    ("@/postgres", "@/leasemill_unknown", "create the database"),
])  # fmt: skip
@pytest.mark.parametrize("command", [["stats"], ["db", "status"]])
def test_who_is_not_let_in_learns_why_at_once(
    postgres_url: str, command: list[str], part: str, other: str, remedy: str
) -> None:
    done = leasemill(*command, "--url", postgres_url.replace(part, other))
    assert done.exit_code == 1, done.output
    assert "refused the connection" in done.output
    assert remedy in done.output


@pytest.mark.parametrize("text", [
    'FATAL:  password authentication failed for user "app"',
    'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "app", database "app", no encryption',
    'FATAL:  permission denied for database "app"',
    "fe_sendauth: no password supplied",
])  # fmt: skip
def test_every_way_of_being_kept_out_has_its_remedy(text: str) -> None:
    assert not_let_in(psycopg.OperationalError(f"connection failed: {text}")) is not None


@pytest.mark.parametrize("text", ["Connection refused", "FATAL:  the database system is starting up", "timeout"])
def test_what_may_be_different_later_is_no_refusal(text: str) -> None:
    assert not_let_in(psycopg.OperationalError(text)) is None
    assert "cannot be reached" in str(not_reached(psycopg.OperationalError(text)))


def test_a_store_that_was_open_waits_until_it_is_let_in_again(url_of: Url, admin: psycopg.Connection[Any]) -> None:
    url, role = url_of("reader"), f"leasemill_reader_{os.getpid()}"
    with open_store(with_option(url, "retry_for_s=0.05")) as store:
        assert store.queues() == []
        admin.execute(f"alter role {role} rename to {role}_away".encode())
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename like %s", [f"{role}%"])
        with pytest.raises(Unavailable, match="cannot be reached"):
            store.queues()
        admin.execute(f"alter role {role}_away rename to {role}".encode())
        assert store.queues() == []


def test_a_server_without_a_connection_left_is_unavailable(url_of: Url, admin: psycopg.Connection[Any]) -> None:
    url = url_of("reader")
    admin.execute(f"alter role leasemill_reader_{os.getpid()} connection limit 0".encode())
    done = leasemill("stats", "--url", with_option(url, "retry_for_s=0.05"))
    assert done.exit_code == 3
    assert "no connection left" in done.output


def test_keys_are_created_and_revoked_by_roles_that_work_or_operate(url_of: Url) -> None:
    worker, app = url_of("worker"), url_of("app")
    assert leasemill("keys", "create", "ci", "--role", "work", "--url", worker).exit_code == 0
    for command in (["create", "own", "--role", "operate"], ["revoke", "ci"]):
        done = leasemill("keys", *command, "--url", app)
        assert done.exit_code == 1, done.output
        assert "this role may not do that" in done.output
    with open_store(worker) as store:
        (key,) = store.keys.all()
        store.keys.use({key.id: 1})
    assert leasemill("keys", "revoke", "ci", "--url", worker).exit_code == 0


@rule("T1", "T6")
def test_limits_need_no_more_rights_than_the_page_lists(url_of: Url) -> None:
    job = JobSpec("one", "q", "k", rules=Rules(limits=(LimitUse("a"),)))
    with PostgresStore(url_of("worker")) as worker, PostgresStore(url_of("app")) as app:
        worker.set_limit("a", LimitTerms(places=1), by="ada", reason="because")
        worker.set_limit("queue:q", LimitTerms(places=5), by="ada", reason="because")
        app.run(c.Enqueue([job]))
        with PostgresStore(url_of("reader")) as reader:
            assert reader.due_in(["q"]) == 0
            assert [view.name for view in reader.limits()] == ["a", "queue:q"]
        assert [lease.job.id for lease in worker.claim("w", ["q"], 5)] == ["one"]
