"""The exact path: three statements in two round trips, and no row is changed that was not locked or checked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from leasemill.errors import QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel import machine
from leasemill.kernel.model import JobSpec, JobState, LimitTerms, LimitUse, Rules
from leasemill.store.postgres.admin.check import check
from leasemill.store.postgres.driver.connections import Connections
from leasemill.store.postgres.exact import decide as exact
from leasemill.store.postgres.exact.save import TABLES
from leasemill.store.postgres.statements import Execute, Statements
from leasemill.store.postgres.steps import RetryTransaction, Steps
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.rules import rule

Admin = psycopg.Connection[Any]
DECISION = [3, 2]
"""BEGIN, lock, load; save, COMMIT."""


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with PostgresStore(postgres_url) as store:
        yield store


def statements(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> list[int]:
    """How many statements `work` sends in each batch."""
    sent: list[int] = []
    exchange = Connections.exchange

    def noted(connections: Connections, connection: Any, statements: Any) -> Any:
        sent.append(len(statements))
        return exchange(connections, connection, statements)

    with monkeypatch.context() as patched:
        patched.setattr(Connections, "exchange", noted)
        work()
    return sent


def test_a_decision_is_two_round_trips(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.enqueue([JobSpec("held", "q", "k"), JobSpec("failed", "q", "k")])
    held, failed = store.claim("w", ["q"], 2)
    refused = c.AckReport("held", "another")
    assert statements(monkeypatch, lambda: store.ack([refused])) == DECISION
    permanent = c.NackReport("failed", failed.token, "broke", is_permanent=True)
    assert statements(monkeypatch, lambda: store.nack([permanent])) == [*DECISION, 1], "and a notification"
    request = c.AcquireRequest("offsets", "a", 1, "w", "token")
    assert statements(monkeypatch, lambda: store.acquire([request])) == DECISION
    assert statements(monkeypatch, lambda: store.ack([c.AckReport("offsets/a/1", "token")])) == DECISION
    store.ack([c.AckReport("held", held.token)])
    repeat = c.AckReport("held", held.token)
    assert statements(monkeypatch, lambda: store.ack([repeat])) == [3, 1], "nothing to save"


@rule("T5")
def test_an_enqueue_of_many_jobs_under_a_limit_is_a_bounded_number_of_statements(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.declare_limits({"stripe": LimitTerms(5)}, by="worker")

    sent: list[str] = []
    text_of = Statements.sent

    def noted(statements: Statements, call: Execute) -> Any:
        sent.append(str(call.statement))
        return text_of(statements, call)

    monkeypatch.setattr(Statements, "sent", noted)
    for name, count in (("first", 1), ("many", 10_000)):
        sent.clear()
        uses = [(LimitUse("stripe", f"customer-{number % 100}"),) for number in range(count)]
        store.enqueue([JobSpec(f"{name}-{no}", "q", "k", rules=Rules(limits=one)) for no, one in enumerate(uses)])
    assert sent == ["enqueue"], "the queue and its limits are known by now"
    assert store.totals().counts[JobState.READY] == 10_001


def test_the_columns_of_the_rows_are_those_of_the_tables(schema: str, store: PostgresStore, admin: Admin) -> None:
    """But for numbers that the server gives, and what only claims go by."""
    for name, table in TABLES.items():
        query = "select column_name from information_schema.columns where table_schema = %s and table_name = %s"
        columns = {column for (column,) in admin.execute(query, [schema, name])}
        assert columns - set(table.row.__struct_fields__) <= {"number", "is_limited"}, name
        assert set(table.row.__struct_fields__) <= columns, name


@pytest.fixture
def meanwhile(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], list[int]]:
    """Something happens once, between what a decision reads and what it writes; how often it was decided is noted."""

    def arrange(happens: Callable[[], Any]) -> list[int]:
        tries: list[int] = []
        run = machine.run

        def run_meanwhile(*given: Any) -> Any:
            tries.append(len(tries))
            answer = run(*given)
            if len(tries) == 1:
                happens()
            return answer

        monkeypatch.setattr(exact, "run", run_meanwhile)
        return tries

    return arrange


def states(store: PostgresStore, ids: Sequence[str]) -> list[JobState | None]:
    jobs = [store.job(one) for one in ids]
    return [None if job is None else job.state for job in jobs]


@rule("O1", "C1")
def test_a_job_that_is_claimed_while_its_cancel_is_decided_is_decided_again(
    store: PostgresStore, schema: str, admin: Admin, meanwhile: Any
) -> None:
    store.claim("w", ["q"], 1)  # L7: the first claim of a process looks for expired leases, on the exact path too
    store.enqueue([JobSpec("job", "q", "k")])
    tries = meanwhile(lambda: store.claim("w", ["q"], 1))
    assert store.cancel(["job"], by="ada", reason="because") == [c.Cancelled("job", JobState.CANCELLED)]
    assert len(tries) == 2
    job = store.job("job")
    assert job is not None
    assert [one.attempt for one in job.executions] == [1]
    assert check(admin, schema) == []


@rule("O1", "X4", "X5")
@pytest.mark.parametrize("end", ["ack", "commit"])
def test_a_job_that_commits_while_its_cancel_is_decided_is_not_cancelled(
    store: PostgresStore, schema: str, admin: Admin, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It is claimed after the locks were taken and before the rows are read: then its lease is not locked."""
    store.claim("w", ["q"], 1)  # L7: as above
    store.enqueue([JobSpec("job", "q", "k")])
    run, exchange = machine.run, Connections.exchange
    once: list[c.Lease] = []

    def claim_after_the_locks(connections: Connections, connection: Any, statements: Any) -> Any:
        is_locked = any(text.startswith(b"-- The exact path, first") for text, _ in statements[:-1])
        if once or not is_locked:
            return exchange(connections, connection, statements)
        answers = exchange(connections, connection, statements[:-1])
        once.extend(store.claim("w", ["q"], 1))
        return answers + exchange(connections, connection, statements[-1:])

    def end_after_the_decision(*given: Any) -> Any:
        monkeypatch.setattr(exact, "run", run)
        decision = run(*given)
        if end == "ack":
            assert store.ack([c.AckReport("job", once[0].token)]) == [c.Acked("job")]
        else:
            assert store.commit("job", once[0].token) == c.Committed("job", ())
        return decision

    monkeypatch.setattr(Connections, "exchange", claim_after_the_locks)
    monkeypatch.setattr(exact, "run", end_after_the_decision)
    store.cancel(["job"], by="ada", reason="because")
    assert once
    assert states(store, ["job"]) == [JobState.SUCCEEDED]
    assert check(admin, schema) == []


@rule("O5")
def test_a_job_that_is_forgotten_while_its_purge_is_decided_is_not_counted_twice(
    store: PostgresStore, schema: str, admin: Admin, meanwhile: Any
) -> None:
    store.enqueue([JobSpec("job", "q", "k")])
    (lease,) = store.claim("w", ["q"], 1)
    store.ack([c.AckReport("job", lease.token)])
    meanwhile(lambda: store.prune(before=2**62, keep=0, limit=10))
    operated = store.purge(c.JobFilter(job_ids=("job",)), by="ada", reason="because", limit=10)
    assert operated.job_ids == ()
    assert store.totals().counts[JobState.SUCCEEDED] == 0
    assert check(admin, schema) == []


@rule("I7")
def test_a_queue_that_comes_to_be_used_with_enqueue_meanwhile_refuses_the_acquire(
    store: PostgresStore, meanwhile: Any
) -> None:
    meanwhile(lambda: store.enqueue([JobSpec("job", "q", "k")]))
    with pytest.raises(Exception, match="'q' is used with enqueue"):
        store.acquire([c.AcquireRequest("q", "a", 1, "w", "token")])
    assert store.lane("q", "a") is None


@rule("L5")
def test_a_report_that_is_refused_twice_at_once_is_one_refusal(store: PostgresStore, meanwhile: Any) -> None:
    """Nothing of a job that is ready is locked."""
    store.enqueue([JobSpec("job", "q", "k")])
    late = [c.AckReport("job", "late")]
    tries = meanwhile(lambda: store.ack(late))
    (outcome,) = store.ack(late)
    assert isinstance(outcome, c.Lost)
    assert len(tries) == 3
    job = store.job("job")
    assert job is not None
    assert [refusal.token for refusal in job.refusals] == ["late"]


@rule("L6")
def test_a_repeat_that_is_decided_twice_is_still_reported_as_a_repeat(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.enqueue([JobSpec("job", "q", "k")])
    (lease,) = store.claim("w", ["q"], 1)
    assert store.ack([c.AckReport("job", lease.token)]) == [c.Acked("job")]
    decide = exact._decide
    tries: list[int] = []

    def moved_once(*given: Any) -> Steps[Any]:
        tries.append(len(tries))
        if len(tries) == 1:
            raise RetryTransaction("a row had changed")
        return decide(*given)

    monkeypatch.setattr(exact, "_decide", moved_once)
    (outcome,) = store.ack([c.AckReport("job", lease.token)])
    assert len(tries) == 2
    assert isinstance(outcome, c.Acked)
    assert outcome.is_repeat


@rule("N12", "N1")
def test_two_acquires_of_a_lane_that_is_not_there_yet_are_decided_one_after_the_other(
    store: PostgresStore, postgres_url: str, schema: str, admin: Admin, meanwhile: Any
) -> None:
    with PostgresStore(postgres_url) as other, ThreadPoolExecutor(1) as thread:
        second: list[Future[list[c.AcquireOutcome]]] = []

        def begin_another() -> None:
            second.append(thread.submit(other.acquire, [c.AcquireRequest("q", "a", 2, "w", "second")]))
            deadline = time.monotonic() + 60
            while not second[0].done() and not is_waiting(admin):
                assert time.monotonic() < deadline
                time.sleep(0.01)

        meanwhile(begin_another)
        first = store.acquire([c.AcquireRequest("q", "a", 1, "w", "first")])
        kinds = [type(outcome) for outcome in first + second[0].result(60)]
    assert kinds == [c.Acquired, c.Backlogged]
    assert check(admin, schema) == []


def is_waiting(admin: Admin) -> bool:
    return admin.execute("select from pg_locks where not granted").fetchone() is not None


@rule("N4")
def test_the_ack_of_a_lanes_head_without_its_lane_is_left_to_the_exact_path(
    store: PostgresStore, schema: str, admin: Admin
) -> None:
    store.enqueue([JobSpec(one, "q", "k", lane="a") for one in ("head", "next")])
    (lease,) = store.claim("w", ["q"], 1)
    leases = store._known.leases
    leases[lease.token] = replace(leases[lease.token], lane=None)
    assert store.ack([c.AckReport("head", lease.token)]) == [c.Acked("head", c.LaneHint("next", None))]
    assert check(admin, schema) == []


def test_statements_are_prepared_again_after_a_rollback(store: PostgresStore, caplog: pytest.LogCaptureFixture) -> None:
    """psycopg has all statements deallocated after a ROLLBACK, those of the exact path too."""
    caplog.set_level(logging.INFO)
    for number in range(3):
        store.enqueue([JobSpec(f"job-{number}", "q", "k")])
        (lease,) = store.claim("w", ["q"], 1)
        store.acquire([c.AcquireRequest("offsets", "a", number, "w", f"token-{number}")])
        with pytest.raises(QueueRefused):
            store.acquire([c.AcquireRequest("q", "a", 1, "w", f"other-{number}")])
        reports = 2 * [c.AckReport(f"offsets/a/{number}", f"token-{number}")]
        assert [one.is_repeat for one in store.ack(reports) if isinstance(one, c.Acked)] == [False, True]
        store.ack([c.AckReport(lease.job.id, lease.token)])
    assert "prepared statements do not last" not in caplog.text
