"""`leasemill.commit(...)` in SQL: a job takes effect with any transaction, if its lease is held at its COMMIT."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from leasemill import App, Context, JobState
from leasemill.kernel import commands as c
from leasemill.kernel.model import ExecutionStatus, JobSpec
from leasemill.kernel.verbs.commit import followup_id
from leasemill.store.postgres.driver.url import parse_url
from leasemill.testing.rules import rule
from tests.store.postgres.committing import SOON, WRITE, Connection, cents, drained, held, refused


@pytest.fixture
def app(postgres_url: str, bank: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("LEASEMILL_URL", postgres_url)
    with App(postgres_url) as made:
        yield made


@pytest.fixture
def client(postgres_url: str, bank: Connection) -> Iterator[Connection]:
    with psycopg.connect(parse_url(postgres_url)[0]) as connection:
        yield connection


class Caller:
    """Calls the function on a connection of its own, as any client would."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._call = sql.SQL("select {}(%s, %s, %s, %s)").format(sql.Identifier(schema, "commit"))

    def commit(self, lease: c.Lease, result: Any = None, followups: Any = ()) -> list[str]:
        given = None if result is None else Jsonb(result)
        row = self._connection.execute(
            self._call, [lease.job.id, lease.token, given, Jsonb(followups if followups != () else [])]
        ).fetchone()
        assert row is not None
        ids: list[str] = row[0]
        return ids


@pytest.fixture
def caller(client: Connection, schema: str) -> Caller:
    return Caller(client, schema)


def guards(bank: Connection, schema: str) -> int:
    row = bank.execute(f"select count(*) from {schema}.guards".encode()).fetchone()
    assert row is not None
    return int(row[0])


def is_committed(app: App, lease: c.Lease) -> bool:
    job = app.store.job(lease.job.id)
    assert job is not None
    return job.executions[-1].status is ExecutionStatus.COMMITTED


@rule("X4", "X6")
def test_effect_marker_result_and_followups_are_one(
    app: App, client: Connection, caller: Caller, bank: Connection, schema: str
) -> None:
    _, lease = held(app)
    client.execute(WRITE, [7])
    followup = {"queue": "mail", "kind": "receipt", "payload": {"to": "ann"}, "lane": "ann", "priority": 3}
    followup |= {"headers": {"trace": "7"}}
    assert caller.commit(lease, {"paid": 7}, [followup]) == [followup_id(lease.job.id, 0)]
    assert not is_committed(app, lease)
    client.commit()
    assert is_committed(app, lease)
    assert (cents(bank), guards(bank, schema)) == (7, 0)
    made = app.store.job(followup_id(lease.job.id, 0))
    assert made is not None
    assert (made.spec.queue, made.spec.lane, made.spec.priority) == ("mail", "ann", 3)
    assert made.spec.headers == {"trace": "7"}
    app.store.ack([c.AckReport(lease.job.id, lease.token)])
    assert app.handle(lease.job.id).result(0) == {"paid": 7}


def test_what_is_written_after_the_call_is_guarded_too(
    app: App, client: Connection, caller: Caller, bank: Connection
) -> None:
    """The lease is looked at by COMMIT, whatever comes between."""
    _, lease = held(app)
    caller.commit(lease)
    client.execute(WRITE, [7])
    app.store.cancel([lease.job.id], by="me", reason="a test")
    with pytest.raises(psycopg.Error, match="is not held") as failed:
        client.commit()
    assert failed.value.sqlstate == "LM001"
    assert cents(bank) == 0


@rule("L1", "L2")
def test_a_lease_that_expires_before_commit_is_lost(
    app: App, client: Connection, caller: Caller, bank: Connection
) -> None:
    """Although nobody else has taken the job yet."""
    _, lease = held(app)
    client.execute(WRITE, [7])
    caller.commit(lease)
    bank.execute(f"update {_schema(app)}.leases set expires_at = 1".encode())
    with pytest.raises(psycopg.Error, match="is not held"):
        client.commit()
    assert (cents(bank), is_committed(app, lease)) == (0, False)


def _schema(app: App) -> str:
    return parse_url(app.url)[1].schema


def test_a_lost_lease_is_refused_by_the_call(app: App, client: Connection, caller: Caller) -> None:
    _, lease = held(app)
    app.store.cancel([lease.job.id], by="me", reason="a test")
    with pytest.raises(psycopg.Error, match="is not held") as failed:
        caller.commit(lease)
    assert failed.value.sqlstate == "LM001"


@rule("X4")
def test_one_transaction_commits_a_job_once(app: App, client: Connection, caller: Caller) -> None:
    _, lease = held(app)
    caller.commit(lease)
    with pytest.raises(psycopg.Error, match="call commit once") as failed:
        caller.commit(lease)
    assert failed.value.sqlstate == "LM001"
    client.rollback()
    caller.commit(lease)
    client.commit()
    with pytest.raises(psycopg.Error, match="has committed"):
        caller.commit(lease)


def test_a_rolled_back_savepoint_takes_the_commit_with_it(
    app: App, client: Connection, caller: Caller, bank: Connection
) -> None:
    _, lease = held(app)
    with client.transaction():
        client.execute(WRITE, [7])
        with client.transaction(force_rollback=True):
            caller.commit(lease, followups=[{"queue": "mail", "kind": "receipt"}])
    assert (cents(bank), is_committed(app, lease)) == (7, False)
    assert app.store.job(followup_id(lease.job.id, 0)) is None


def test_an_open_transaction_locks_nothing_of_the_stores(app: App, caller: Caller, bank: Connection) -> None:
    """The heartbeat extends the lease, and the reaper may end it."""
    _, lease = held(app)
    caller.commit(lease)
    for table in ("leases", "jobs", "queues"):
        bank.execute(f"select * from {_schema(app)}.{table} for update nowait".encode())
    (extended,) = app.store.extend([c.LeaseRef(lease.job.id, lease.token)])
    assert isinstance(extended, c.Extended)


@rule("L3", "X4")
def test_of_two_transactions_with_one_lease_one_commits(
    app: App, client: Connection, caller: Caller, bank: Connection, postgres_url: str, schema: str
) -> None:
    _, lease = held(app)
    client.execute("insert into balance values ('bob', 1)")
    caller.commit(lease)
    raised: list[str | None] = []

    def second() -> None:
        with psycopg.connect(parse_url(postgres_url)[0]) as other:
            try:
                Caller(other, schema).commit(lease)
                other.commit()
            except psycopg.Error as error:
                raised.append(error.sqlstate)

    thread = threading.Thread(target=second)
    thread.start()
    client.commit()
    thread.join(20)
    assert raised == ["LM001"]
    assert is_committed(app, lease)


@pytest.mark.parametrize(
    ("followups", "message"),
    [
        ({}, "must be a JSON array"),
        ([7], "follow-up 0 is not a JSON object"),
        (
            [{"queue": "q", "kind": "k"}, {"queue": "q", "kind": "k", "prio": 1}],
            "follow-up 1 has 'prio'; it takes queue",
        ),
        ([{"queue": "no spaces", "kind": "k"}], "is not a name"),
        ([{"queue": "q", "kind": "k", "payload": 7}], "payload must be a JSON object"),
    ],
)
def test_what_is_malformed_is_refused_with_what_to_write(
    app: App, client: Connection, caller: Caller, followups: Any, message: str
) -> None:
    _, lease = held(app)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=message):
        caller.commit(lease, followups=followups)
    client.rollback()
    assert not is_committed(app, lease)


@rule("X6")
def test_a_conflicting_followup_fails_the_transaction(app: App, client: Connection, caller: Caller) -> None:
    _, lease = held(app)
    app.store.enqueue([JobSpec(followup_id(lease.job.id, 0), "mail", "other", b"{}")])
    with pytest.raises(psycopg.errors.UniqueViolation, match="exists with other content"):
        caller.commit(lease, followups=[{"queue": "mail", "kind": "receipt"}])


def test_a_role_needs_the_right_to_call_it_and_no_other(
    app: App, client: Connection, caller: Caller, bank: Connection, schema: str
) -> None:
    _, lease = held(app)
    bank.execute("drop role if exists committer")
    bank.execute("create role committer")
    try:
        bank.execute("grant update, select on balance to committer")
        bank.execute(f"grant usage on schema {schema} to committer".encode())
        client.execute("set role committer")
        client.commit()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            caller.commit(lease)
        client.rollback()
        bank.execute(f"grant execute on function {schema}.commit to committer".encode())
        client.execute(WRITE, [7])
        caller.commit(lease, followups=[{"queue": "mail", "kind": "receipt"}])
        client.commit()
        assert (cents(bank), is_committed(app, lease)) == (7, True)
    finally:
        client.rollback()
        client.execute("reset role")
        client.commit()
        bank.execute("drop owned by committer")
        bank.execute("drop role committer")


async def test_a_handler_may_leave_its_commit_to_another_client(app: App, bank: Connection, schema: str) -> None:
    """A stored procedure, say, or a service in another language: it is given the job's id and the token."""
    attempts: list[int] = []

    @app.job(retry=SOON)
    def deposit(ctx: Context, amount: int) -> None:
        attempts.append(ctx.attempt)
        with psycopg.connect(parse_url(app.url)[0]) as other:
            other.execute(WRITE, [amount])
            call = sql.SQL("select {}(%s, %s, '\"paid\"')").format(sql.Identifier(schema, "commit"))
            other.execute(call, [ctx.job_id, ctx.token])
        raise ValueError("after the commit")

    handle = deposit.enqueue(7)
    await drained(app)
    assert (cents(bank), attempts, handle.status()) == (7, [1], JobState.SUCCEEDED)
    assert app.handle(handle.id).result(0) == "paid"


def test_a_refusal_in_another_clients_transaction_leaves_no_record(app: App, caller: Caller) -> None:
    """It is undone with the transaction; the worker whose lease it was learns of the loss by its heartbeat."""
    _, lease = held(app)
    app.store.cancel([lease.job.id], by="me", reason="a test")
    with pytest.raises(psycopg.Error, match="is not held"):
        caller.commit(lease)
    assert refused(app, lease) == []
