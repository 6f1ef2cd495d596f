"""Claims and acks sent by the event loop itself on PostgreSQL: no thread where all is plain, the same outcomes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
import pytest

from leasemill.errors import Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.postgres.admin.check import check as check_tables
from leasemill.store.postgres.statements import Execute, Statement
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.verbs import ack as ack_verb
from leasemill.testing.rules import rule

ResultT = TypeVar("ResultT")
LONG_S = 30.0


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with PostgresStore(postgres_url) as store:
        yield store


def enqueue(store: PostgresStore, *job_ids: str, lane: str | None = None) -> None:
    store.enqueue([JobSpec(job_id, "q", "k", lane=lane) for job_id in job_ids])


def claim(store: PostgresStore, limit: int) -> c.Claim:
    *tokens, request = store.entropy.tokens(limit + 1)
    return c.Claim("w", ["q"], limit, tokens, request)


def ack(*leases: c.Lease) -> c.Ack:
    return c.Ack([c.AckReport(lease.job.id, lease.token) for lease in leases])


@rule("C2", "L6", "N4")
def test_they_take_no_thread(store: PostgresStore) -> None:
    enqueue(store, *(f"j{number}" for number in range(10)))
    enqueue(store, "a1", "a2", lane="a")

    async def both() -> tuple[list[c.Lease], list[c.AckOutcome]]:
        leases = await store.arun(claim(store, 20))
        return leases, await store.arun(ack(*leases))

    store.claim("w", ["q"], 1)  # how the queue is used is known from now on
    threads = set(threading.enumerate())  # stores of other tests may have some
    leases, outcomes = asyncio.run(both())
    assert [lease.job.id for lease in leases] == [*(f"j{number}" for number in range(1, 10)), "a1"]
    assert [lease.fence for lease in leases] == sorted(lease.fence for lease in leases)
    assert outcomes[:-1] == [c.Acked(f"j{number}") for number in range(1, 10)]
    assert outcomes[-1] == c.Acked("a1", c.LaneHint("a2", None))
    assert not [one.name for one in set(threading.enumerate()) - threads if one.name.startswith("leasemill-postgres")]


@rule("C2")
def test_an_answer_of_many_parts_arrives_whole(store: PostgresStore) -> None:
    payload = b'"%s"' % (b"x" * 1_000)
    store.enqueue([JobSpec(f"j{number:04}", "q", "k", payload) for number in range(2_000)])
    store.claim("w", ["q"], 1)
    leases = asyncio.run(_run(store, claim(store, 1_999)))
    assert [lease.job.id for lease in leases] == [f"j{number:04}" for number in range(1, 2_000)]
    assert {lease.job.payload for lease in leases} == {payload}


def test_they_go_on_without_threads_after_a_rollback(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg has all statements of a connection deallocated after a ROLLBACK."""
    in_threads = 0
    with PostgresStore(f"{postgres_url}&pool_size=1") as store:
        enqueue(store, *(f"j{number}" for number in range(10)))
        store.claim("w", ["q"], 1)
        assert len(asyncio.run(_run(store, claim(store, 1)))) == 1
        submit = store._threads.submit

        def roll_back(connection: psycopg.Connection[Any]) -> None:
            connection.execute("begin")
            connection.rollback()

        def counted(*call: Any) -> Any:
            nonlocal in_threads
            in_threads += 1
            return submit(*call)

        store._thread_driver.with_connection(roll_back)
        monkeypatch.setattr(store._threads, "submit", counted)
        for _ in range(3):
            assert len(asyncio.run(_run(store, claim(store, 1)))) == 1
    assert in_threads <= 1


def test_heads_of_lanes_are_acked_with_prepared_statements_after_a_rollback(postgres_url: str) -> None:
    """An ack of the loop has no BEGIN: after a ROLLBACK not BEGIN is missed, but the ack in a transaction."""
    with PostgresStore(postgres_url) as producer:
        enqueue(producer, "j1", "j2")
        enqueue(producer, "a1", "a2", lane="a")
    with PostgresStore(f"{postgres_url}&pool_size=1") as store:
        store.claim("w", ["q"], 1)
        asyncio.run(_run(store, ack(*asyncio.run(_run(store, claim(store, 1))))))

        def roll_back(connection: psycopg.Connection[Any]) -> None:
            connection.execute("begin")
            connection.rollback()

        store._thread_driver.with_connection(roll_back)
        (head,) = store.claim("w", ["q"], 1)
        assert store.ack([c.AckReport(head.job.id, head.token)]) == [c.Acked("a1", c.LaneHint("a2", None))]
        assert store._connections.prepares


def test_a_loop_that_was_closed_under_a_claim_disturbs_no_other(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str
) -> None:
    enqueue(store, "j1", "j2")
    store.claim("w", ["q"], 1)
    closed = asyncio.new_event_loop()
    closed.set_exception_handler(lambda *_: None)  # for the task that it leaves
    with psycopg.connect(admin.info.dsn, password=admin.info.password or None) as other:
        other.execute(f"lock table {schema}.requests in exclusive mode".encode())
        left = closed.create_task(_run(store, claim(store, 1)))
        closed.run_until_complete(asyncio.sleep(0))
        closed.close()
    assert asyncio.run(_run(store, c.Enqueue([JobSpec("j3", "q", "k")]))) == [c.Enqueued("j3")]
    del left


@rule("L2", "L6")
def test_a_lease_that_is_not_held_keeps_no_other_from_its_end(store: PostgresStore) -> None:
    enqueue(store, "j1", "j2", "j3")
    leases = store.claim("w", ["q"], 3)
    store.cancel(["j2"], by="ada", reason="because")
    first, second, third = asyncio.run(_run(store, ack(*leases)))
    assert (first, third) == (c.Acked("j1"), c.Acked("j3"))
    assert isinstance(second, c.Lost)
    again = asyncio.run(_run(store, ack(leases[0])))
    assert again == [c.Acked("j1", is_repeat=True)]


@rule("L6", "X7")
def test_a_session_that_is_ended_under_an_ack_ends_the_job_once(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str
) -> None:
    enqueue(store, "j1")
    (lease,) = store.claim("w", ["q"], 1)
    outcomes = ended_under_it(store, admin, ack(lease), f"select from {schema}.leases for update")
    assert outcomes == [c.Acked("j1")]
    job = store.job("j1")
    assert job is not None
    assert (job.state, len(job.executions)) == (JobState.SUCCEEDED, 1)
    assert check_tables(admin, schema) == []


@rule("C5")
def test_a_session_that_is_ended_under_a_claim_orphans_nothing(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str
) -> None:
    enqueue(store, "j1", "j2")
    store.claim("w", ["q"], 1)
    leases = ended_under_it(store, admin, claim(store, 5), f"lock table {schema}.requests in exclusive mode")
    assert [(lease.job.id, lease.attempt) for lease in leases] == [("j2", 1)]
    assert store.totals().counts[JobState.LEASED] == 2
    assert check_tables(admin, schema) == []


def ended_under_it(
    store: PostgresStore, admin: psycopg.Connection[Any], command: c.Command[ResultT], lock: str
) -> ResultT:
    """What a command returns whose session is ended while it waits for this lock."""
    with psycopg.connect(admin.info.dsn, password=admin.info.password or None) as other, ThreadPoolExecutor(1) as pool:
        other.execute(lock.encode())
        under_way = pool.submit(asyncio.run, _run(store, command))
        wait_until(lambda: waits(admin))
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'leasemill' and wait_event_type = 'Lock'"
        )
        wait_until(lambda: waits(admin))
        other.rollback()
        return under_way.result(LONG_S)


def _run(store: PostgresStore, command: c.Command[ResultT]) -> Coroutine[Any, Any, ResultT]:
    return store.arun(command)


def waits(admin: psycopg.Connection[Any]) -> bool:
    query = "select from pg_stat_activity where application_name = 'leasemill' and wait_event_type = 'Lock'"
    return admin.execute(query).fetchone() is not None


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_message_that_cannot_be_written_costs_no_connection(postgres_url: str) -> None:
    with PostgresStore(f"{postgres_url}&pool_size=1&pool_timeout_s=1") as store:
        enqueue(store, "job")

        async def malformed() -> None:
            message = (Execute(Statement(b"select $1", ("value",), ("text",)), {"value": 1.5}),)
            with pytest.raises(AttributeError):
                store._loop_driver.send(message, lambda _: None)

        asyncio.run(malformed())
        assert [lease.job.id for lease in store.claim("w", ["q"], 1)] == ["job"]


@rule("E6", "L6")
def test_many_acks_are_sent_in_parts_and_answered_in_order(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_verb, "REPORTS_AT_ONCE", 3)
    enqueue(store, *(f"j{number}" for number in range(10)))
    leases = store.claim("w", ["q"], 10)
    store.ack([c.AckReport(leases[4].job.id, leases[4].token)])
    outcomes = asyncio.run(store.arun(ack(*leases, leases[0])))
    assert outcomes == [
        *(c.Acked(f"j{number}", is_repeat=number == 4) for number in range(10)),
        c.Acked("j0", is_repeat=True),
    ]
    assert store.totals().counts[JobState.SUCCEEDED] == 10


def test_a_loop_that_is_blocked_leaves_a_connection_to_threads(postgres_url: str) -> None:
    """No answer is read while a handler blocks the loop: the worker's heartbeat must not wait for that."""
    with PostgresStore(f"{postgres_url}&pool_size=3&pool_timeout_s=5") as store:
        for connection in [store._connections.take() for _ in range(3)]:
            store._connections.give_back(connection)
        are_sent, goes_on = threading.Event(), threading.Event()

        async def sends_many() -> None:
            calls = [asyncio.ensure_future(store.arun(c.GetTotals())) for _ in range(12)]
            await asyncio.sleep(0)
            are_sent.set()
            goes_on.wait(LONG_S)  # it blocks the loop, on purpose
            await asyncio.gather(*calls)

        with ThreadPoolExecutor(1) as thread:
            blocked = thread.submit(asyncio.run, sends_many())
            assert are_sent.wait(LONG_S)
            try:
                assert store.run(c.GetTime()) > 0
            finally:
                goes_on.set()
            blocked.result(LONG_S)


async def test_nothing_is_sent_for_a_call_that_was_cancelled(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent is carried out; a claim that goes on could be granted jobs that nobody receives."""
    enqueue(store, "job")
    assert len(await store.arun(c.Claim("w", ["q"], 1, ["first"], "first"))) == 1  # how the queue is used is known now
    sent: list[object] = []
    send = store._loop_driver.send

    def noted(message: Any, on_answer: Any) -> bool:
        sent.append(message)
        return send(message, on_answer)

    monkeypatch.setattr(store._loop_driver, "send", noted)
    call = asyncio.ensure_future(store.arun(c.Claim("w", ["q"], 1, ["token"], "request")))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await store.arun(c.GetTime())  # by then the answer has come
    await asyncio.sleep(0.2)
    assert len(sent) == 2


def test_an_error_of_the_server_is_quoted_without_its_severity(store: PostgresStore) -> None:
    with pytest.raises(Refused, match=r"cannot store every text \(invalid byte sequence"):
        store.run(c.GetJob("nul \x00"))
