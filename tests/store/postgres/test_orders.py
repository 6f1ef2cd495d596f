"""Orders to worker processes on a server."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import Order
from leasemill.store.postgres.driver.connections import Connections
from leasemill.store.postgres.presence import PostgresPresence
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.presence import Present
from leasemill.store.worker_records import records
from leasemill.testing.rules import rule
from tests.process.support import Scene
from tests.process.test_worker_commands import quiet_and_resumed, stopped


@pytest.fixture
def scene(postgres_url: str, tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as cleaning:
        yield Scene(postgres_url, tmp_path, cleaning)


@rule("O12", "O13")
def test_a_quiet_worker_ends_what_runs_and_claims_again_when_it_is_resumed(scene: Scene) -> None:
    quiet_and_resumed(scene)


@rule("O12", "O13")
def test_a_worker_that_is_ordered_to_stop_ends_with_exit_code_0_and_nothing_is_lost(scene: Scene) -> None:
    stopped(scene)


@rule("O12")
def test_of_many_first_orders_at_once_one_is_recorded(postgres_url: str) -> None:
    count = 8
    with PostgresStore(postgres_url) as store:
        barrier = Barrier(count)

        def order(number: int) -> None:
            barrier.wait()
            store.run(c.OrderWorker("worker", "instance", Order.QUIET, f"operator {number}", "a leak"))

        threads = [Thread(target=order, args=[number]) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (act,) = store.actions()
        found = store.order("instance")
        assert found is not None
        assert (found.by, found.at) == (act.by, act.at)


@rule("O13")
def test_a_heartbeat_and_the_order_that_it_returns_are_one_statement(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresStore(postgres_url) as store:
        store.run(c.OrderWorker("worker", "instance", Order.QUIET, "ada", "a leak"))
        sent: list[Any] = []
        exchange = Connections.exchange

        def counted(connections: Connections, connection: Any, statements: Any) -> Any:
            sent.extend(statements)
            return exchange(connections, connection, statements)

        monkeypatch.setattr(Connections, "exchange", counted)
        order = store.presence.publish("worker", b'{"instance":"instance"}')
        assert len(sent) == 1
        monkeypatch.undo()
        assert order == store.order("instance")
        assert records(store.presence) == []  # of another version


def test_a_record_that_was_replaced_meanwhile_is_not_removed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresStore(postgres_url) as store:
        presence = store.presence
        presence.publish("worker", b'{"instance":"first"}')
        assert not presence.remove("worker", "second")
        read = PostgresPresence.records

        def then_replace(self: PostgresPresence) -> list[Present]:
            found = read(self)
            presence.publish("worker", b'{"instance":"second"}')
            return found

        with monkeypatch.context() as patched:
            patched.setattr(PostgresPresence, "records", then_replace)
            assert not presence.remove("worker", "first")
        assert [record.content for record in presence.records()] == [b'{"instance":"second"}']
        assert presence.remove("worker", "second")
