"""`leasemill db`, migrations, and opening a store whose tables are not there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.errors import Invalid, Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, LimitTerms, Rules, UniqueKey
from leasemill.store.factory import open_store
from leasemill.store.postgres.admin import migrate as migrating
from leasemill.store.postgres.admin.migrate import applied, migrate, migrations
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.encoding import ENCODERS
from leasemill.store.postgres.statements import FILES, Statements, statement
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.store.postgres.conftest import with_option


@pytest.fixture
def bare(server_url: str, admin: psycopg.Connection[Any]) -> Iterator[str]:
    """A schema that is not there yet."""
    admin.execute("drop schema if exists leasemill_bare cascade")
    yield with_option(server_url, "schema=leasemill_bare")
    admin.execute("drop schema if exists leasemill_bare cascade")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["db", *arguments])
    return result.exit_code, result.output


def test_migrate_status_and_check_walk_a_schema_from_nothing_to_sound(bare: str) -> None:
    code, output = run("status", "--url", bare)
    assert code == 1
    assert "run leasemill db migrate" in output
    names = ", ".join(one.name for one in migrations())
    assert run("migrate", "--url", bare) == (0, f"schema leasemill_bare: applied {names}\n")
    assert run("migrate", "--url", bare) == (0, "schema leasemill_bare is up to date\n")
    assert run("status", "--url", bare)[0] == 0
    code, output = run("check", "--url", bare)
    assert (code, output.splitlines()[-1]) == (0, "schema leasemill_bare is sound")
    with open_store(bare) as store:
        store.enqueue([JobSpec("job", "q", "k")])
    assert run("check", "--rebuild", "--url", bare)[0] == 0


def test_a_migration_reports_how_many_are_applied(bare: str, admin: psycopg.Connection[Any]) -> None:
    reported: list[tuple[int, int]] = []
    done = migrate(admin, parse_url(bare)[1].schema, lambda *step: reported.append(step))
    assert reported == [(number, len(done)) for number in range(len(done))]
    assert len(done) == len(migrations())


def test_an_unmigrated_store_is_refused_with_the_command_to_run(bare: str) -> None:
    with pytest.raises(Refused, match="leasemill db migrate"):
        PostgresStore(bare)


def test_a_schema_that_a_newer_version_has_changed_is_refused_and_not_migrated(
    bare: str, admin: psycopg.Connection[Any]
) -> None:
    run("migrate", "--url", bare)
    latest = migrations()[-1].version
    admin.execute("insert into leasemill_bare.migrations (version, name) values (9001, '9001_later')")
    assert run("status", "--url", bare) == (0, "schema leasemill_bare is up to date, at version 9001\n")
    with open_store(bare) as store:
        assert store.job("job") is None
    admin.execute("delete from leasemill_bare.migrations where version < 9001")  # as the first use of a rule does
    refusal = f"is at version 9001, and this Leasemill knows versions up to {latest}: a newer Leasemill has changed"
    for command in ("status", "migrate"):
        code, output = run(command, "--url", bare)
        assert (code, refusal in output) == (1, True)
    for url in (bare, with_option(bare, "auto_migrate=1")):
        with pytest.raises(Refused, match=refusal):
            PostgresStore(url)
    assert applied(admin, "leasemill_bare") == [9001]


def test_a_store_can_be_asked_to_migrate_itself(bare: str) -> None:
    with PostgresStore(with_option(bare, "auto_migrate=1")) as store:
        assert store.job("job") is None


def test_migrating_at_once_from_many_places_applies_each_version_once(
    bare: str, admin: psycopg.Connection[Any]
) -> None:
    conninfo, options = parse_url(bare)
    done: list[int] = []

    def work() -> None:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            done.extend(one.version for one in migrate(connection, options.schema))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.sort()
    assert done == [one.version for one in migrations()]
    assert applied(admin, options.schema) == [version for version in done if not 8 <= version <= 21]


def test_what_is_wrong_with_a_url_is_said() -> None:
    with pytest.raises(Invalid, match="schema"):
        parse_url("postgresql://host/db?schema=Robert');drop")
    with pytest.raises(Invalid, match="pool_size"):
        parse_url("postgresql://host/db?pool_size=many")
    with pytest.raises(Invalid, match=r"unknown option 'schem': use .*schema"):
        parse_url("postgresql://host/db?schem=jobs")
    conninfo, options = parse_url("postgresql://u@h:1/db?sslmode=verify-full&schema=jobs&pool_size=3&connect_timeout=2")
    assert conninfo == "postgresql://u@h:1/db?sslmode=verify-full&connect_timeout=2"
    assert (options.schema, options.pool_size) == ("jobs", 3)


@pytest.mark.parametrize("option", [
    "retry_for_s=nan", "retain_for_s=inf", "pool_timeout_s=-1", "statement_timeout_s=3000000", "lock_timeout_s=-0.5",
    "retain_count=-1", "retain_count=99999999999999999999",
])  # fmt: skip
def test_a_number_that_is_out_of_bounds_is_refused(option: str) -> None:
    name, _, _ = option.partition("=")
    with pytest.raises(Invalid, match=f"{name} in the store's URL is .*; write a number from 0 to"):
        parse_url(f"postgresql://host/db?{option}")


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        PostgresStore("postgresql://nobody@127.0.0.1:1/none?retry_for_s=0.2&connect_timeout=1")
    assert run("status", "--url", "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1")[0] == 3


def test_a_statement_has_its_parameters_by_number_in_the_order_of_their_first_use() -> None:
    text, names, types = statement(
        "select {late}::int8, {early}::text[], {late}::text from {schema}.jobs where id = '{{}}'", "mill"
    )
    assert text == b"select $1::int8, $2::text[], $1::text from \"mill\".jobs where id = '{}'"
    assert (names, types) == (("late", "early"), ("int8", "text[]"))


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_parameter_of_a_statement_is_cast_to_a_type_that_can_be_encoded(name: str) -> None:
    assert ENCODERS.keys() >= set(Statements("leasemill")[name].types)


def test_the_statement_for_new_ids_is_enqueue_without_its_conflict_clause() -> None:
    statements = Statements("leasemill")
    clause = b"on conflict on constraint job_id do nothing"
    _, _, enqueue = statements["enqueue"].text.partition(b"\nwith ")
    _, _, enqueue_new = statements["enqueue_new"].text.partition(b"\nwith ")
    assert clause in enqueue
    assert enqueue_new.split() == enqueue.replace(clause, b"").split()


def test_a_schema_may_have_the_name_of_a_keyword(server_url: str, admin: psycopg.Connection[Any]) -> None:
    admin.execute('drop schema if exists "order" cascade')
    url = with_option(server_url, "schema=order")
    try:
        assert run("migrate", "--url", url)[0] == 0
        with PostgresStore(url) as store:
            store.enqueue([JobSpec("one", "mail", "send", b"{}")])
            (lease,) = store.claim("worker", ["mail"], 1)
            assert isinstance(store.ack([c.AckReport(lease.job.id, lease.token)])[0], c.Acked)
        assert run("check", "--rebuild", "--url", url)[0] == 0
        assert run("check", "--url", url)[1].splitlines()[-1] == "schema order is sound"
    finally:
        admin.execute('drop schema "order" cascade')


def test_leases_of_queues_with_a_limit_are_counted_in_a_schema_of_an_earlier_version(
    bare: str, admin: psycopg.Connection[Any]
) -> None:
    schema = parse_url(bare)[1].schema
    migrate(admin, schema)
    with PostgresStore(bare) as store:
        store.set_limit("queue:q", LimitTerms(places=2), by="ada", reason="because")
        store.enqueue([JobSpec(f"j{number}", queue, "k") for number, queue in enumerate(["q", "other", "q", "q"])])
        assert len(store.claim("w", ["q", "other"], 10)) == 3
    admin.execute(f"drop index {schema}.lease_limited")
    admin.execute(f"alter table {schema}.leases drop column is_limited")
    admin.execute(f"""insert into {schema}.places (name, key, no, fence)
        select 'queue:q', '', no, fence from {schema}.leases where queue = 'q'""")
    (changed,) = (one for one in migrations() if one.version == 21)
    admin.execute(statement(changed.text, schema).text, prepare=False)
    assert admin.execute(f"select count(*) from {schema}.places").fetchone() == (0,)
    assert admin.execute(f"select count(*) from {schema}.leases where is_limited").fetchone() == (2,)
    with PostgresStore(bare) as store:
        assert store.claim("w", ["q"], 2) == []
    assert run("check", "--url", bare)[0] == 0


@rule("U1", "U3")
def test_unique_keys_of_an_earlier_version_belong_to_the_queues_of_their_jobs(
    bare: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is kept for a job that is forgotten is held in every queue: which one it was for is not on record."""
    schema, known = parse_url(bare)[1].schema, migrations()
    with monkeypatch.context() as earlier:
        earlier.setattr(migrating, "migrations", lambda: [one for one in known if one.version < 22])
        migrate(admin, schema)
    enqueue = f"select {schema}.enqueue(%s, 'k', id => %s, unique_key => %s, unique_keep => %s)".encode()
    for job_id, keep in (("held", None), ("kept", "1 hour"), ("gone", "1 hour"), ("free", None)):
        assert admin.execute(enqueue, ["a", job_id, f"key of {job_id}", keep]).fetchone() == (job_id,)
    for table, column in (("ready", "seq"), ("jobs", "no")):
        admin.execute(
            f"""delete from {schema}.{table} where {column} in (
            select no from {schema}.jobs where id in ('gone', 'free'))""".encode()
        )
    assert [one.version for one in migrate(admin, schema)] == [one.version for one in known if one.version >= 22]
    assert run("check", "--url", bare)[0] == 0

    def unique(queue: str, key: str) -> JobSpec:
        return JobSpec(f"{queue} {key}", queue, "k", rules=Rules(unique=UniqueKey(key)))

    clock = ManualClock(time.time_ns() // 1_000)
    with PostgresStore(bare, clock=clock) as store:
        for queue, merged in (("a", ["held", "kept", "gone"]), ("b", ["gone"])):
            for job_id in ("held", "kept", "gone", "free"):
                key = f"key of {job_id}"
                expected = c.Merged(job_id) if job_id in merged else c.Enqueued(f"{queue} {key}")
                assert store.enqueue([unique(queue, key)]) == [expected], (queue, job_id)
                assert admin.execute(enqueue, [queue, None, key, None]).fetchone() == (expected.job_id,)
        seen = store.key("c", "key of gone")
        assert seen is not None
        assert seen.job_id == "gone"
        clock.advance(us=3_601 * SECOND)
        assert store.key("c", "key of gone") is None
        for queue in ("a", "b", "c"):
            assert isinstance(store.enqueue([unique(queue, "key of gone")])[0], c.Enqueued)


def test_versions_that_know_unique_keys_without_queues_refuse_a_schema_of_this_one(
    bare: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When they open it; and what one that has it open would read or write is not there."""
    schema, known = parse_url(bare)[1].schema, migrations()
    migrate(admin, schema)
    for version in (21, 8):
        with monkeypatch.context() as earlier:
            earlier.setattr(migrating, "migrations", lambda to=version: [one for one in known if one.version <= to])
            with pytest.raises(Refused, match=rf"knows versions up to {version}: a newer Leasemill has changed"):
                PostgresStore(bare)
    assert admin.execute("select to_regclass(%s)", [f"{schema}.keys"]).fetchone() == (None,)
