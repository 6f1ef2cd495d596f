"""`select leasemill.enqueue(…)`: jobs of producers that are not Python, from psql and in their own transactions."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

from leasemill import App, JobState, JobType
from leasemill.errors import Invalid, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, Rules
from leasemill.kernel.verbs.enqueue import check_job
from leasemill.store.postgres.admin.check import check
from leasemill.store.postgres.admin.migrate import applied, migrate, migrations
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.postgres import NoServer, find_binaries
from leasemill.testing.rules import rule
from tests.store.postgres.listening import has_succeeded, is_listening
from tests.worker.support import until, working

Connection = psycopg.Connection[Any]


@pytest.fixture
def app(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("LEASEMILL_URL", postgres_url)
    with App(postgres_url) as made:
        yield made


@pytest.fixture
def charge(app: App) -> JobType[[str, int], str]:
    @app.job(queue="billing", lane="account")
    async def charge(account: str, cents: int) -> str:
        return f"{account}: {cents}"

    return charge


@pytest.fixture
def mine(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(parse_url(postgres_url)[0]) as connection:
        yield connection


def find_psql() -> str:
    try:
        beside = find_binaries() / "psql"
    except NoServer:
        beside = Path("/nowhere")
    found = str(beside) if beside.exists() else shutil.which("psql")
    assert found, "there is no psql to test with: install PostgreSQL's client"
    return found


def psql(url: str, script: str) -> subprocess.CompletedProcess[str]:
    command = [find_psql(), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", parse_url(url)[0]]
    environment = {**os.environ, "PGCLIENTENCODING": "UTF8"}
    return subprocess.run(
        command, input=script, capture_output=True, text=True, env=environment, timeout=30, check=False
    )


# From psql -------------------------------------------------------------------------------------------------------


async def test_psql_enqueues_in_its_own_transaction_and_a_worker_runs_it(
    app: App, charge: JobType[[str, int], str], postgres_url: str, schema: str
) -> None:
    ann = '{"account": "ann", "cents": 500}'
    done = psql(
        postgres_url,
        f"""
        begin;
        select {schema}.enqueue('billing', 'charge', '{ann}', id => 'order-1', lane => 'ann');
        commit;
        begin;
        select {schema}.enqueue('billing', 'charge', '{ann}', id => 'order-2', lane => 'ann');
        rollback;
        select {schema}.enqueue('billing', 'charge', jsonb_build_object('account', 'bob', 'cents', 7));
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third = done.stdout.split()
    assert (first, second) == ("order-1", "order-2")
    async with working(app):
        assert await app.handle("order-1").aresult(30) == "ann: 500"
        assert await app.handle(third).aresult(30) == "bob: 7"
    assert app.store.job("order-2") is None


def test_psql_is_told_what_is_wrong(postgres_url: str, schema: str) -> None:
    done = psql(postgres_url, f"select {schema}.enqueue('no spaces please', 'charge');")
    assert done.returncode == 3
    assert "queue 'no spaces please' is not a name: use 1 to 100 of" in done.stderr


@rule("P4")
def test_ids_of_schedules_are_refused(postgres_url: str, schema: str) -> None:
    done = psql(postgres_url, f"select {schema}.enqueue('mail', 'send', id => 'cron/tidy/2030-01-31T12:00:00Z');")
    assert done.returncode == 3
    assert "begins with 'cron/', as those of schedules' jobs do: use another" in done.stderr


@pytest.mark.usefixtures("only_notified")
async def test_an_idle_worker_is_woken_by_it(
    app: App, charge: JobType[[str, int], str], mine: Connection, schema: str
) -> None:
    async with working(app):
        await until(lambda: is_listening(app.store))
        for number in range(6):
            lane = "'ann'" if number % 2 else "null"
            payload = f'{{"account": "ann", "cents": {number}}}'
            query = f"select {schema}.enqueue('billing', 'charge', '{payload}', lane => {lane})"
            row = mine.execute(query.encode()).fetchone()
            assert row is not None
            mine.commit()
            await until(partial(has_succeeded, app.handle(row[0])))


# As the client does ----------------------------------------------------------------------------------------------


def call(connection: Connection, schema: str, **given: Any) -> str:
    named = ", ".join(f"{name} => %({name})s" for name in given)
    row = connection.execute(f"select {schema}.enqueue({named})".encode(), given).fetchone()
    assert row is not None
    return str(row[0])


def rows(connection: Connection, schema: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row a job has, but for its id, its number and when it came."""
    queries = {
        "jobs": "queue, kind, payload::jsonb, lane, priority, run_at, delay_us, policy, lane_offset from {}.jobs",
        "ready": "queue, rank, available_at - created_at, ready.no, attempt, retries, expirations "
        "from {0}.ready join {0}.jobs using (queue) where seq = jobs.no",
        "arrivals": "queue, lane from {}.arrivals",
        "queues": "name, mode, is_paused, policy from {}.queues",
    }
    return {
        name: connection.execute(f"select {query.format(schema)} order by 1, 2, 3".encode()).fetchall()
        if name != "arrivals"
        else connection.execute(f"select {query.format(schema)} order by 1, 2".encode()).fetchall()
        for name, query in queries.items()
    }


@rule("E3")
@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({}, {}),
        ({"payload": '{"a": [1, "ä"]}'}, {"payload": '{"a": [1, "ä"]}'.encode()}),
        ({"priority": 9}, {"priority": 9}),
        ({"delay": "2 minutes"}, {"delay_us": 120_000_000}),
        ({"run_at": "2100-01-01T00:00:00.123456Z"}, {"run_at": 4_102_444_800_123_456}),
        ({"run_at": "1999-01-01T00:00:00Z"}, {"run_at": 915_148_800_000_000}),
        ({"lane": "ann & bob"}, {"lane": "ann & bob"}),
    ],
)
def test_the_function_writes_what_the_client_writes(
    postgres_url: str, admin: Connection, schema: str, given: dict[str, Any], spec: dict[str, Any]
) -> None:
    call(admin, schema, queue="q", kind="k", **given)
    by_function = rows(admin, schema)
    for table in ("jobs", "ready", "arrivals", "queues"):
        admin.execute(f"delete from {schema}.{table}".encode())
    with PostgresStore(postgres_url) as store, psycopg.connect(parse_url(postgres_url)[0]) as mine:
        store.using(mine).enqueue([JobSpec("x", "q", "k", spec.pop("payload", b"{}"), **spec)])
        mine.commit()
        by_client = rows(admin, schema)
    if "run_at" in given:  # due at an instant, so how far off it is depends on when it came
        for side in (by_function, by_client):
            side["ready"] = [(*row[:2], row[2] > 0, *row[3:]) for row in side["ready"]]
    assert by_function == by_client


def test_a_generated_id_is_a_uuid_of_version_7_in_the_order_of_time(admin: Connection, schema: str) -> None:
    ids = []
    for _ in range(5):
        ids.append(call(admin, schema, queue="q", kind="k"))
        time.sleep(0.002)
    assert ids == sorted(ids)
    assert {(one[14], one[19] in "89ab", len(one)) for one in ids} == {("7", True, 36)}


@rule("E2", "E4")
def test_a_known_id_is_the_same_job_or_a_conflict(app: App, mine: Connection, schema: str) -> None:
    given = {"queue": "q", "kind": "k", "payload": '{"a": 1, "b": 2}', "id": "one", "priority": 3}
    assert call(mine, schema, **given) == "one"
    assert call(mine, schema, **{**given, "payload": '{"b":2, "a":1}'}) == "one"
    mine.commit()
    for change in (
        {"payload": '{"a": 2}'},
        {"kind": "other"},
        {"queue": "other"},
        {"priority": 4},
        {"lane": "x"},
        {"delay": "1 s"},
        {"run_at": "2100-01-01"},
    ):
        with pytest.raises(errors.UniqueViolation, match="job 'one' exists with other content"), mine.transaction():
            call(mine, schema, **{**given, **change})
    app.store.enqueue([JobSpec("two", "q", "k", b'{"a":1}')])
    assert call(mine, schema, queue="q", kind="k", payload='{"a": 1}', id="two") == "two"


@rule("I4")
@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": ""},
        {"queue": "-a"},
        {"queue": "a" * 101},
        {"queue": "ä"},
        {"queue": None},
        {"queue": "two\nlines"},
        {"queue": "line\n"},
        {"kind": "a b"},
        {"kind": None},
        {"id": ""},
        {"id": "x" * 201},
        {"id": "bell\u0007"},
        {"id": "no\u00a0break"},
        {"id": "zero\u200bwidth"},
        {"lane": ""},
        {"lane": "x" * 201},
        {"lane": "tab\t"},
        {"lane": "right\u202eto left"},
        {"priority": -1},
        {"priority": 10},
        {"payload": '{"a": "' + "x" * 1_048_576 + '"}'},
        {"delay": "-1 second"},
        {"delay": "3661 days"},
        {"run_at": "1969-12-31T00:00:00Z"},
        {"delay": "1 second", "run_at": "2100-01-01T00:00:00Z"},
    ],
    ids=lambda wrong: ", ".join(f"{name}={str(value)[:12]!a}" for name, value in wrong.items()),
)
def test_what_python_refuses_the_function_refuses(mine: Connection, schema: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        call(mine, schema, **{"queue": "q", "kind": "k", **wrong})
    mine.rollback()
    if wrong.keys() <= {"queue", "kind", "id", "lane", "priority"} and None not in wrong.values():
        spec = {"id": "x", "queue": "q", "kind": "k", **wrong}
        with pytest.raises(Invalid):
            check_job(JobSpec(**spec))


@rule("I4")
@pytest.mark.parametrize("text", ["a", "x" * 200, "größe/日本 🎉", "a'b\"c\\d", "; drop table jobs", "%s %(x)s {}"])
def test_what_python_takes_the_function_takes(mine: Connection, schema: str, text: str) -> None:
    check_job(JobSpec(text, "q", "k", lane=text))
    assert call(mine, schema, queue="a.b:c-d_1", kind="K", id=text, lane=text) == text


@pytest.mark.parametrize("payload", ["[1]", "1", "null", None])
def test_a_payload_is_the_arguments_by_name(mine: Connection, schema: str, payload: str | None) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="a JSON object"):
        call(mine, schema, queue="q", kind="k", payload=payload)


@rule("I7")
def test_a_queue_of_acquire_is_refused(app: App, mine: Connection, schema: str) -> None:
    app.store.acquire([c.AcquireRequest("offsets", "d", 1, "w", "t")])
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="queue 'offsets' is used with acquire"):
        call(mine, schema, queue="offsets", kind="k")


def test_its_jobs_keep_the_tables_sound(app: App, admin: Connection, schema: str, postgres_url: str) -> None:
    for number in range(20):
        call(admin, schema, queue="q", kind="k", lane=[None, "a", "b"][number % 3], priority=number % 10)
    assert check(admin, schema) == []
    ended = 0
    while claimed := app.store.claim("w", ["q"], 100):
        app.store.ack([c.AckReport(lease.job.id, lease.token) for lease in claimed])
        ended += len(claimed)
    assert ended == 20
    assert check(admin, schema) == []


def test_a_producer_needs_no_right_but_to_call_it(app: App, admin: Connection, schema: str, postgres_url: str) -> None:
    admin.execute("drop role if exists leasemill_shop")
    admin.execute("create role leasemill_shop login")
    try:
        with psycopg.connect(parse_url(postgres_url)[0], autocommit=True) as mine:
            mine.execute("set role leasemill_shop")
            with pytest.raises(errors.InsufficientPrivilege):
                call(mine, schema, queue="q", kind="k")
            admin.execute(f"grant usage on schema {schema} to leasemill_shop".encode())
            with pytest.raises(errors.InsufficientPrivilege, match="function enqueue"):
                call(mine, schema, queue="q", kind="k")
            admin.execute(f"grant execute on function {schema}.enqueue to leasemill_shop".encode())
            assert call(mine, schema, queue="q", kind="k", id="allowed") == "allowed"
            with pytest.raises(errors.InsufficientPrivilege, match="table jobs"):
                mine.execute(f"select * from {schema}.jobs".encode())
        job = app.store.job("allowed")
        assert job is not None
        assert job.state is JobState.READY
    finally:
        admin.execute("drop owned by leasemill_shop")
        admin.execute("drop role leasemill_shop")


def test_the_version_of_the_contract_can_be_asked_for(admin: Connection, schema: str) -> None:
    assert admin.execute(f"select {schema}.enqueue_version()".encode()).fetchone() == (2,)


def test_a_store_of_version_one_is_brought_up_while_jobs_are_enqueued(
    server_url: str, admin: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to version 7 none waits for a lock that a producer holds. Version 8 adds columns to jobs: it waits, a while,
    and changes nothing if it is in vain."""
    admin.execute("drop schema if exists leasemill_old cascade")
    try:
        with monkeypatch.context() as only_the_first:
            only_the_first.setattr("leasemill.store.postgres.admin.migrate.migrations", lambda: migrations()[:1])
            migrate(admin, "leasemill_old")
        with psycopg.connect(parse_url(server_url)[0]) as busy:
            busy.execute("insert into leasemill_old.queues (name) values ('q')")
            busy.execute("lock table leasemill_old.jobs in row exclusive mode")
            with monkeypatch.context() as up_to_seven:
                up_to_seven.setattr("leasemill.store.postgres.admin.migrate.migrations", lambda: migrations()[:7])
                assert [one.version for one in migrate(admin, "leasemill_old")] == [2, 3, 4, 5, 6, 7]
            with pytest.raises(Unavailable, match="repeat the command when"):
                migrate(admin, "leasemill_old", patience_s=0)
            assert applied(admin, "leasemill_old")[-1] == 7
            busy.rollback()
        assert [one.version for one in migrate(admin, "leasemill_old")] == [one.version for one in migrations()][7:]
    finally:
        admin.execute("drop schema if exists leasemill_old cascade")


# Groups and headers ---------------------------------------------------------------------------------------------


def sql_enqueue(connection: Connection, schema: str, given: str) -> str:
    row = connection.execute(f"select {schema}.enqueue('q', 'k', {given})".encode()).fetchone()
    assert row is not None
    return str(row[0])


@rule("B1", "E2", "E4")
def test_a_job_joins_a_group_and_has_headers(
    postgres_url: str, schema: str, mine: Connection, admin: psycopg.Connection[Any]
) -> None:
    with PostgresStore(postgres_url) as store:
        store.create_group("import", on_end=ChainedJob("callbacks", "end"))
        given = """id => 'row', group_id => 'import', headers => '{"trace": "t1", "tenant": "ä"}'"""
        assert sql_enqueue(mine, schema, given) == sql_enqueue(mine, schema, given) == "row"
        mine.commit()
        job, group = store.job("row"), store.group("import")
        assert job is not None
        assert group is not None
        assert (job.spec.headers, job.spec.rules) == ({"trace": "t1", "tenant": "ä"}, Rules(group="import"))
        assert (group.total, group.unfinished) == (1, 1)
        assert store.enqueue([JobSpec("row", "q", "k", b"{}", rules=Rules(group="import"))]) == [c.Duplicate("row")]
        assert sql_enqueue(mine, schema, "id => 'row', group_id => 'import'") == "row", "headers are not content"
        store.seal_group("import")
        assert sql_enqueue(mine, schema, "id => 'row', group_id => 'import'") == "row", "ids come first"
        mine.commit()
        (lease,) = store.claim("w", ["q"], 5)
        store.ack([c.AckReport("row", lease.token)])
        assert store.job("import/end") is not None
        assert check(admin, schema) == []


@rule("B1", "U1")
def test_a_job_that_is_merged_or_undone_is_no_member(
    postgres_url: str, schema: str, mine: Connection, admin: psycopg.Connection[Any]
) -> None:
    with PostgresStore(postgres_url) as store:
        store.create_group("import")
        first = sql_enqueue(mine, schema, "id => 'a', group_id => 'import', unique_key => 'u'")
        assert sql_enqueue(mine, schema, "id => 'b', group_id => 'import', unique_key => 'u'") == first == "a"
        mine.commit()
        sql_enqueue(mine, schema, "id => 'c', group_id => 'import'")
        mine.rollback()
        group = store.group("import")
        assert group is not None
        assert group.total == 1
        assert check(admin, schema) == []


@rule("B1")
@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("group_id => 'unknown'", errors.ObjectNotInPrerequisiteState, "not known"),
        ("group_id => 'sealed'", errors.ObjectNotInPrerequisiteState, "sealed"),
        ("group_id => ''", errors.InvalidParameterValue, "1 to 200"),
        ("headers => '[]'", errors.InvalidParameterValue, "JSON object of texts"),
        ("headers => '{\"a\": 1}'", errors.InvalidParameterValue, "JSON object of texts"),
        ('headers => \'{"a b": "1"}\'', errors.InvalidParameterValue, "begin with a letter"),
        ("headers => jsonb_build_object('a', repeat('x', 4096))", errors.InvalidParameterValue, "4,096"),
    ],
)
def test_a_wrong_group_or_header_is_refused(
    postgres_url: str, schema: str, mine: Connection, given: str, error: type[Exception], said: str
) -> None:
    with PostgresStore(postgres_url) as store:
        store.create_group("sealed")
        store.seal_group("sealed")
        with pytest.raises(error, match=said):
            sql_enqueue(mine, schema, given)
        assert store.jobs().jobs == ()
