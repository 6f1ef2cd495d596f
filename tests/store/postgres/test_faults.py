"""Servers that stop and connections that break: answers come late, or are Unavailable, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.postgres.driver.connections import Connections
from leasemill.store.postgres.driver.exchange import Sent, StoreConnection
from leasemill.store.postgres.driver.thread import Retries
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.steps import Transact
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.verbs import claim
from leasemill.testing.rules import rule
from tests.lab.postgres import KillableServer
from tests.store.postgres.open_transaction import open_transaction


@pytest.fixture
def server() -> Iterator[KillableServer]:
    with KillableServer() as own:
        yield own


def opened(url: str, **options: object) -> PostgresStore:
    return PostgresStore(url + "".join(f"&{name}={value}" for name, value in options.items()))


@rule("E1")
def test_what_was_answered_is_there_after_a_kill_and_the_store_goes_on(server: KillableServer) -> None:
    with opened(server.url(), auto_migrate=1, retry_for_s=10) as store:
        store.enqueue([JobSpec(f"j{number}", "q", "k") for number in range(20)])
        first, second = store.claim("w", ["q"], 2)
        server.kill()
        server.start()
        assert isinstance(store.ack([c.AckReport(first.job.id, first.token)])[0], c.Acked)
        server.stop("fast")
        server.start()
        assert isinstance(store.extend([c.LeaseRef(second.job.id, second.token)])[0], c.Extended)
        assert store.totals().counts[JobState.READY] == 18


def test_a_server_that_is_down_is_unavailable_and_comes_back(server: KillableServer) -> None:
    with opened(server.url(), auto_migrate=1, retry_for_s=0.3) as store:
        store.enqueue([JobSpec("job", "q", "k")])
        server.stop("immediate")
        with pytest.raises(Unavailable):
            store.job("job")
        server.start()
        assert store.job("job") is not None


def test_terminated_backends_are_replaced(postgres_url: str, admin: psycopg.Connection[Any]) -> None:
    with PostgresStore(postgres_url) as store:
        for number in range(5):
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'leasemill' and pid <> pg_backend_pid()"
            )
            assert store.enqueue([JobSpec(f"j{number}", "q", "k")]) in (
                [c.Enqueued(f"j{number}")],
                [c.Duplicate(f"j{number}")],
            )
        assert len(store.claim("w", ["q"], 10)) == 5


def test_an_exhausted_pool_says_so(postgres_url: str) -> None:
    with PostgresStore(f"{postgres_url}&pool_size=1&pool_timeout_s=0.1") as store:
        pool = store._connections._pool
        taken = pool.take(store._connections.connect)
        with pytest.raises(Unavailable, match="pool_size"):
            store.job("job")
        pool.give_back(taken)
        assert store.job("job") is None


def test_a_lease_is_extended_past_a_locked_row_and_counts_as_held(postgres_url: str, schema: str) -> None:
    with PostgresStore(postgres_url) as store:
        store.enqueue([JobSpec("job", "q", "k")])
        (lease,) = store.claim("w", ["q"], 1)
        with psycopg.connect(parse_url(postgres_url)[0]) as other:
            other.execute(f"select * from {schema}.leases for update".encode())
            assert store.extend([c.LeaseRef("job", lease.token)]) == [c.Extended("job", lease.expires_at)]


def test_without_listening_and_preparing_everything_works(postgres_url: str) -> None:
    """As behind a pooler that gives another session to every transaction."""
    with PostgresStore(f"{postgres_url}&listen=0&prepare=0&session_settings=0") as store:
        store.enqueue([JobSpec("job", "q", "k", lane="a")])
        watch = store.watch(["q"])
        assert watch.wait(30)
        (lease,) = store.claim("w", ["q"], 1)
        assert store.ack([c.AckReport("job", lease.token)]) == [c.Acked("job")]
        watch.close()


@rule("C1")
def test_another_process_is_woken_by_a_notification(postgres_url: str) -> None:
    with PostgresStore(postgres_url) as producer, PostgresStore(postgres_url) as consumer:
        watch = consumer.watch(["q"])
        assert consumer._listener.is_listening.wait(30)
        while watch.wait(0.01):
            pass
        producer.enqueue([JobSpec("job", "q", "k")])
        assert watch.wait(30)
        watch.close()


@rule("C5")
@pytest.mark.parametrize("job_count", [2, 4])
@pytest.mark.parametrize("is_repeat", [False, True], ids=["by its caller", "by the store"])
def test_a_claim_repeated_while_the_first_is_at_work_waits_for_it(
    postgres_url: str, job_count: int, *, is_repeat: bool
) -> None:
    """The first reply was lost, and its transaction is still open. With two jobs there is nothing left for another."""
    with PostgresStore(postgres_url) as store, ThreadPoolExecutor(1) as executor:
        store.enqueue([JobSpec(f"j{number}", "q", "k") for number in range(job_count)])
        command = c.Claim("w", ["q"], 2, ["t1", "t2"], "request")

        def repeat() -> list[c.Lease]:
            if not is_repeat:
                return store.run(command)
            again = Retries(store._connections)
            again.number = 2
            claims = Transact(lambda attempt: claim._claim(store._known, command, attempt))
            claimed: claim.Claimed = store._thread_driver.transact(claims, again)
            return claimed.leases

        with open_transaction(store) as first:
            leases = first.run(claim._claim_once(store._known, command, waits=False)).leases
            repeated = executor.submit(repeat)
            wait_until_blocked(postgres_url)
            assert not repeated.done()
        assert len(leases) == 2
        assert repeated.result(30) == leases


@rule("C5")
def test_a_claim_that_began_before_the_first_had_committed_gives_no_others(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    """The first ends after the repeat has taken its snapshot, and before the repeat has looked whether it is alone."""
    with PostgresStore(postgres_url) as store, ThreadPoolExecutor(1) as executor:
        store.enqueue([JobSpec(f"j{number}", "q", "k") for number in range(4)])
        command = c.Claim("w", ["q"], 2, ["t1", "t2"], "request")
        known = store._known
        scan = known.positions.scan(["q"], is_full=True)
        unnoticed = {**claim.parameters(command), "request_key": None, "waits": False}
        with open_transaction(store) as first:
            leases = first.run(claim._claim_from(scan, known, command, unnoticed)).leases
            repeated = executor.submit(store.run, command)
            wait_until_blocked(postgres_url)
        assert repeated.result(30) == leases
        assert len(admin.execute(f"select from {schema}.leases".encode()).fetchall()) == len(leases) == 2


def wait_until_blocked(url: str) -> None:
    query = "select from pg_stat_activity where application_name = 'leasemill' and wait_event_type = 'Lock'"
    with psycopg.connect(parse_url(url)[0], autocommit=True) as connection:
        until_s = time.monotonic() + 30
        while connection.execute(query).fetchone() is None:
            assert time.monotonic() < until_s
            time.sleep(0.01)


@rule("E2", "E4", "E5")
@pytest.mark.parametrize("lane", [None, "lane"])
def test_ids_said_to_be_new_that_are_known_are_answered_as_any_others(postgres_url: str, lane: str | None) -> None:
    known, other, new = (JobSpec(one, "q", "k", lane=lane) for one in ("known", "other", "new"))
    with PostgresStore(postgres_url) as store:
        assert store.run(c.Enqueue([known, other], are_new=True)) == [c.Enqueued("known"), c.Enqueued("other")]
        again = [known, JobSpec("other", "q", "another", lane=lane), new]
        expected = [c.Duplicate("known"), c.Conflict("other"), c.Enqueued("new")]
        assert store.run(c.Enqueue(again, are_new=True)) == expected
        assert store.totals().counts[JobState.READY] == 3


@rule("E5")
def test_new_jobs_whose_answer_was_lost_are_enqueued_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, admin: psycopg.Connection[Any]
) -> None:
    exchange = Connections.exchange
    lost: list[int] = []

    def exchange_and_lose(self: Connections, connection: StoreConnection, statements: Sequence[Sent]) -> Any:
        answer = exchange(self, connection, statements)
        if not lost:
            lost.append(connection.info.backend_pid)
            admin.execute("select pg_terminate_backend(%s)", lost)
            exchange(self, connection, [(b"select 1", ())])
        return answer

    with PostgresStore(postgres_url) as store:
        store.enqueue([JobSpec("first", "q", "k")])  # so that the queue is known, and the insert commits by itself
        monkeypatch.setattr(Connections, "exchange", exchange_and_lose)
        assert store.run(c.Enqueue([JobSpec("job", "q", "k")], are_new=True)) == [c.Duplicate("job")]
        assert lost
        assert store.totals().counts[JobState.READY] == 2


def test_behind_a_pooler_nothing_is_prepared(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There another client's statement may stand under the name of ours, and would be carried out instead."""
    with PostgresStore(postgres_url) as direct:
        connection = direct._connections.take()
        assert not direct._connections._is_pooled(connection)
        monkeypatch.setattr(type(connection.info), "backend_pid", -1)  # no session has it
        assert direct._connections._is_pooled(connection)
        direct._connections.give_back(connection)
    with PostgresStore(postgres_url) as store:
        store.enqueue([JobSpec("job", "q", "k")])
        (lease,) = store.claim("w", ["q"], 1)
        assert store.ack([c.AckReport("job", lease.token)]) == [c.Acked("job")]
        count = [(b"select count(*) from pg_prepared_statements", ())]
        assert store._thread_driver.with_connection(lambda own: store._connections.exchange(own, count)) == [[(0,)]]
        assert store._commits._prepare_threshold is None


def test_a_connection_stuck_in_a_pipeline_is_replaced(postgres_url: str) -> None:
    """As when its session ends under one: psycopg cannot leave it, and does not know yet that it is closed."""
    used: list[Any] = []

    def work(connection: StoreConnection) -> int:
        used.append(connection)
        if len(used) == 1:
            connection.pgconn.enter_pipeline_mode()
            raise psycopg.OperationalError("cannot exit pipeline mode while busy")
        return 7

    with PostgresStore(postgres_url) as store:
        assert store._thread_driver.with_connection(work) == 7
        assert used[0].closed
