"""Callers of one process share a statement and a commit when they enqueue: every outcome is right, and nobody is hurt
by another's conflict or end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
import pytest

from leasemill.errors import Invalid, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.postgres.batching import LoopBatcher
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.rules import rule

CALLERS = 32
LONG_S = 30.0
ResultT = TypeVar("ResultT")


def job(job_id: str, lane: str | None = None, payload: bytes = b"{}") -> JobSpec:
    return JobSpec(job_id, "q", "k", payload, lane)


def drawn(job_id: str, lane: str | None = None) -> c.Enqueue:
    return c.Enqueue([job(job_id, lane)], are_new=True)


def given(job_id: str, payload: bytes = b"{}") -> c.Enqueue:
    return c.Enqueue([job(job_id, payload=payload)])


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    """It knows how its queue is used, and has a connection at hand."""
    with PostgresStore(postgres_url) as store:
        store.enqueue([job("first")])
        yield store


class Gate:
    """Holds up every insert of a job, whatever it is, until it is opened."""

    def __init__(self, admin: psycopg.Connection[Any], url: str) -> None:
        self._admin = admin
        self._connection = psycopg.connect(admin.info.dsn, autocommit=False, password=admin.info.password or None)
        self._schema = url.partition("schema=")[2].partition("&")[0]

    def close(self) -> None:
        self._connection.execute(f"lock table {self._schema}.jobs in share mode".encode())

    def open(self) -> None:
        self._connection.rollback()

    def wait_for(self, count: int = 1) -> None:
        """Until so many statements stand before it."""
        wait_until(lambda: self._standing() >= count)

    def _standing(self) -> int:
        row = self._admin.execute(
            "select count(*) from pg_locks where relation = to_regclass(%s) and not granted", [f"{self._schema}.jobs"]
        ).fetchone()
        assert row is not None
        return int(row[0])

    def transactions(self) -> int:
        """How many transactions inserted the jobs, the first one aside."""
        row = self._admin.execute(
            f"select count(distinct xmin::text) from {self._schema}.jobs where id <> 'first'".encode()
        ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def gate(admin: psycopg.Connection[Any], postgres_url: str) -> Iterator[Gate]:
    gate = Gate(admin, postgres_url)
    gate.close()
    yield gate
    gate._connection.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.001)


def waiting(store: PostgresStore, *, are_new: bool = True) -> int:
    return len(store._batches._lines[are_new]._waiting)


def loop_batcher(store: PostgresStore, *, are_new: bool = True) -> LoopBatcher:
    return store._batches._batchers[asyncio.get_running_loop(), are_new]


@contextmanager
def threads() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(CALLERS + 1) as pool:
        yield pool.submit


# What is shared


@rule("E1")
def test_threads_that_come_while_one_sends_share_the_next_transaction(store: PostgresStore, gate: Gate) -> None:
    with threads() as submit:
        calls = [submit(store.run, drawn("j0"))]
        gate.wait_for()
        calls += [submit(store.run, drawn(f"j{number}")) for number in range(1, CALLERS)]
        wait_until(lambda: waiting(store) == CALLERS - 1)
        gate.open()
        assert [call.result(LONG_S) for call in calls] == [[c.Enqueued(f"j{number}")] for number in range(CALLERS)]
    assert gate.transactions() == 2
    assert store.totals().counts[JobState.READY] == CALLERS + 1


@rule("E1")
def test_coroutines_share_a_transaction_and_send_without_a_thread(store: PostgresStore, gate: Gate) -> None:
    async def enqueue_all() -> list[list[c.EnqueueOutcome]]:
        calls = [asyncio.ensure_future(store.arun(drawn("j0")))]
        await asyncio.to_thread(gate.wait_for)
        calls += [asyncio.ensure_future(store.arun(drawn(f"j{number}"))) for number in range(1, CALLERS)]
        await asyncio.sleep(0)
        assert [held.is_busy for held in store._loop_driver._held] == [True]
        assert len(loop_batcher(store)._waiting) == CALLERS - 1
        gate.open()
        return await asyncio.wait_for(asyncio.gather(*calls), LONG_S)

    before = set(threading.enumerate())  # stores of other tests may have some
    assert asyncio.run(enqueue_all()) == [[c.Enqueued(f"j{number}")] for number in range(CALLERS)]
    assert gate.transactions() == 2
    made = set(threading.enumerate()) - before
    assert not [one for one in made if one.name.startswith("leasemill-postgres")]


def test_calls_that_would_hold_others_up_are_not_shared(store: PostgresStore) -> None:
    many = c.Enqueue([job(f"many-{number}") for number in range(500)], are_new=True)
    heavy = c.Enqueue([job("heavy", payload=b'"' + b"x" * 500_000 + b'"')], are_new=True)
    elsewhere = c.Enqueue([JobSpec("elsewhere", "another", "k")], are_new=True)
    assert store.run(many) == [c.Enqueued(f"many-{number}") for number in range(500)]
    assert store.run(heavy) == [c.Enqueued("heavy")]
    assert asyncio.run(store.arun(elsewhere)) == [c.Enqueued("elsewhere")]
    assert asyncio.run(store.arun(c.Enqueue([]))) == []


# Outcomes


async def together(store: PostgresStore, gate: Gate, *commands: c.Enqueue) -> list[Any]:
    """All but the first make one batch."""
    first = asyncio.ensure_future(store.arun(commands[0]))
    await asyncio.to_thread(gate.wait_for)
    calls = [asyncio.ensure_future(store.arun(command)) for command in commands[1:]]
    await asyncio.sleep(0)
    gate.open()
    return await asyncio.wait_for(asyncio.gather(first, *calls, return_exceptions=True), LONG_S)


@rule("E2", "E4", "E6")
def test_each_caller_of_a_batch_has_its_own_outcome(
    store: PostgresStore, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasemill.store.postgres.verbs.enqueue.SHARED_WAIT_MS", 1_000 * int(LONG_S))
    outcomes = asyncio.run(
        together(
            store,
            gate,
            given("new-0"),
            given("first"),
            given("first", b'"other"'),
            given("new-1"),
            given("new-1"),
            given("new-1", b'"other"'),
            c.Enqueue([job("new-2"), job("first"), job("new-2")]),
            given("cron/not allowed"),
            given("new-3"),
        )
    )
    assert outcomes[:7] == [
        [c.Enqueued("new-0")],
        [c.Duplicate("first")],
        [c.Conflict("first")],
        [c.Enqueued("new-1")],
        [c.Duplicate("new-1")],
        [c.Conflict("new-1")],
        [c.Enqueued("new-2"), c.Duplicate("first"), c.Duplicate("new-2")],
    ]
    assert isinstance(outcomes[7], Invalid)
    assert outcomes[8] == [c.Enqueued("new-3")]
    assert gate.transactions() == 2


@rule("E2", "E4")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_drawn_id_that_is_known_fails_nobody_else(store: PostgresStore, gate: Gate, *, is_async: bool) -> None:
    commands = [drawn("j0"), drawn("j1"), drawn("first"), c.Enqueue([job("first", "lane")], are_new=True), drawn("j2")]
    expected = [
        [c.Enqueued("j0")],
        [c.Enqueued("j1")],
        [c.Duplicate("first")],
        [c.Conflict("first")],
        [c.Enqueued("j2")],
    ]
    if is_async:
        assert asyncio.run(together(store, gate, *commands)) == expected
        return
    with threads() as submit:
        calls = [submit(store.run, commands[0])]
        gate.wait_for()
        calls += [submit(store.run, command) for command in commands[1:]]
        wait_until(lambda: waiting(store) == len(commands) - 1)
        gate.open()
        assert [call.result(LONG_S) for call in calls] == expected


@rule("E2")
@pytest.mark.parametrize("is_async", [False, True])
def test_an_id_in_an_open_transaction_holds_up_its_own_caller_alone(
    store: PostgresStore, admin: psycopg.Connection[Any], *, is_async: bool
) -> None:
    def call(command: c.Enqueue) -> list[c.EnqueueOutcome]:
        return asyncio.run(store.arun(command)) if is_async else store.run(command)

    with psycopg.connect(admin.info.dsn, password=admin.info.password or None) as users, threads() as submit:
        assert store.using(users).run(given("theirs")) == [c.Enqueued("theirs")]
        held = submit(call, given("theirs"))
        wait_until(lambda: waiting(store, are_new=False) == 0)
        assert [submit(call, given(f"j{number}")).result(LONG_S) for number in range(8)] == [
            [c.Enqueued(f"j{number}")] for number in range(8)
        ]
        assert not held.done()
        users.rollback()
        assert held.result(LONG_S) == [c.Enqueued("theirs")]


# Lanes


@rule("N2", "E6")
def test_jobs_of_lanes_take_their_places_in_the_order_of_the_calls(store: PostgresStore, gate: Gate) -> None:
    commands = [drawn(f"{lane}{number}", lane) for number in range(10) for lane in "abc"]
    outcomes = asyncio.run(together(store, gate, *commands))
    assert outcomes == [[c.Enqueued(command.jobs[0].id)] for command in commands]
    assert gate.transactions() == 2
    for number in range(10):
        leases = store.claim("w", ["q"], 4)
        assert {lease.job.id for lease in leases} - {"first"} == {f"{lane}{number}" for lane in "abc"}
        store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])


@rule("N2", "N3")
@pytest.mark.parametrize("is_async", [False, True])
def test_an_admission_that_is_under_way_is_left_alone(
    store: PostgresStore, admin: psycopg.Connection[Any], *, is_async: bool
) -> None:
    key = store._known.admission_key
    store.enqueue([job("head", "lane")])
    with psycopg.connect(admin.info.dsn, password=admin.info.password or None) as other:
        other.execute("select pg_advisory_xact_lock(%s)", [key])
        for number in range(3):
            command = drawn(f"next-{number}", "lane")
            outcomes = asyncio.run(store.arun(command)) if is_async else store.run(command)
            assert outcomes == [c.Enqueued(f"next-{number}")]
        assert admin.execute(f"select count(*) from {store.options.schema}.arrivals".encode()).fetchone() == (3,)
    order = []
    for _ in range(8):
        for lease in store.claim("w", ["q"], 10):
            order.append(lease.job.id)
            store.ack([c.AckReport(lease.job.id, lease.token)])
    assert order == ["first", "head", "next-0", "next-1", "next-2"]


# Callers that end


def test_a_coroutine_that_is_cancelled_costs_its_neighbours_nothing(store: PostgresStore, gate: Gate) -> None:
    async def overlap() -> list[Any]:
        sent = asyncio.ensure_future(store.arun(drawn("sent")))
        await asyncio.to_thread(gate.wait_for)
        calls = [asyncio.ensure_future(store.arun(drawn(one))) for one in ("gone", "behind-0", "behind-1")]
        await asyncio.sleep(0)
        sent.cancel()
        calls[0].cancel()
        gate.open()
        return await asyncio.wait_for(asyncio.gather(sent, *calls, return_exceptions=True), LONG_S)

    first, second, *others = asyncio.run(overlap())
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, asyncio.CancelledError)
    assert others == [[c.Enqueued("behind-0")], [c.Enqueued("behind-1")]]
    assert store.job("gone") is None
    assert store.job("sent") is not None


def test_a_loop_that_ended_gives_back_its_connection(postgres_url: str, gate: Gate) -> None:
    with PostgresStore(f"{postgres_url}&pool_size=2&pool_timeout_s=5") as store:
        gate.open()
        store.enqueue([job("first")])
        for number in range(4):
            gate.close()

            async def leave(number: int = number) -> None:
                asyncio.ensure_future(store.arun(drawn(f"left-{number}")))  # noqa: RUF006  (nobody waits for it)
                await asyncio.to_thread(gate.wait_for)

            asyncio.run(leave())
            gate.open()
            assert asyncio.run(store.arun(drawn(f"after-{number}"))) == [c.Enqueued(f"after-{number}")]
        assert store.run(drawn("last")) == [c.Enqueued("last")]


def test_closing_on_its_own_loop_waits_for_what_is_under_way(postgres_url: str, gate: Gate) -> None:
    async def close_meanwhile() -> list[Any]:
        store = PostgresStore(postgres_url)
        gate.open()
        await asyncio.to_thread(store.enqueue, [job("first")])
        gate.close()
        under_way = asyncio.ensure_future(store.arun(drawn("under way")))
        await asyncio.to_thread(gate.wait_for)
        behind = asyncio.ensure_future(store.arun(drawn("behind")))
        await asyncio.sleep(0)
        gate.open()
        store.close()
        answers = [*await asyncio.wait_for(asyncio.gather(under_way, behind, return_exceptions=True), LONG_S)]
        with pytest.raises(Unavailable, match="closed"):
            await store.arun(drawn("late"))
        return answers

    under_way, behind = asyncio.run(close_meanwhile())
    assert under_way == [c.Enqueued("under way")]
    assert isinstance(behind, Unavailable)


@pytest.mark.parametrize("is_async", [False, True])
def test_closing_strands_nobody_although_the_server_is_silent(postgres_url: str, gate: Gate, *, is_async: bool) -> None:
    store = PostgresStore(postgres_url)
    gate.open()
    store.enqueue([job("first")])
    gate.close()

    def call(command: c.Enqueue) -> list[c.EnqueueOutcome]:
        return store.run(command)

    async def calls() -> list[Any]:
        every = [store.arun(drawn(f"j{number}")) for number in range(4)]
        return await asyncio.wait_for(asyncio.gather(*every, return_exceptions=True), LONG_S)

    with threads() as submit:
        callers = [submit(asyncio.run, calls())] if is_async else [submit(call, drawn(f"j{n}")) for n in range(4)]
        gate.wait_for()
        store.close()
        if is_async:
            assert all(isinstance(one, Unavailable) for one in callers[0].result(LONG_S))
        else:
            assert all(isinstance(one.exception(LONG_S), Unavailable) for one in callers)
    gate.open()


# A server that is gone


@rule("E5")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_session_that_is_ended_under_a_batch_loses_and_repeats_nothing(
    store: PostgresStore, gate: Gate, admin: psycopg.Connection[Any], *, is_async: bool
) -> None:
    def end_sessions() -> None:
        gate.wait_for()
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'leasemill' "
            "and wait_event_type = 'Lock'"
        )
        gate.open()

    async def calls() -> list[list[c.EnqueueOutcome]]:
        every = [asyncio.ensure_future(store.arun(drawn(f"j{number}"))) for number in range(8)]
        await asyncio.to_thread(end_sessions)
        return await asyncio.wait_for(asyncio.gather(*every), LONG_S)

    if is_async:
        outcomes = asyncio.run(calls())
    else:
        with threads() as submit:
            every = [submit(store.run, drawn(f"j{number}")) for number in range(8)]
            end_sessions()
            outcomes = [one.result(LONG_S) for one in every]
    assert [one.job_id for (one,) in outcomes] == [f"j{number}" for number in range(8)]
    assert store.totals().counts[JobState.READY] == 9


def test_a_server_that_does_not_answer_is_given_up(store: PostgresStore, gate: Gate) -> None:
    async def call() -> list[c.EnqueueOutcome]:
        connection = store._connections.take_idle()
        assert connection is not None
        connection.silent_for_s = 0.05
        store._connections.give_back(connection)
        under_way = asyncio.ensure_future(store.arun(drawn("job")))
        await asyncio.to_thread(gate.wait_for, 2)  # that one, and its repeat on another connection
        gate.open()
        return await asyncio.wait_for(under_way, LONG_S)

    (outcome,) = asyncio.run(call())
    assert outcome.job_id == "job"
    assert store.totals().counts[JobState.READY] == 2
