"""Transactions of the store's own that a test holds open, with what a verb does in them, or ends under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from leasemill.store.postgres.driver.exchange import StoreConnection
from leasemill.store.postgres.driver.thread import Retries, ThreadDriver
from leasemill.store.postgres.steps import BEGIN, COMMIT, ROLLBACK, Message, Row, Steps, Verb, send
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.steps import drive

ResultT = TypeVar("ResultT")


class OpenTransaction:
    """Runs steps in a transaction that ends when its block does, whatever they say of BEGIN and COMMIT."""

    def __init__(self, driver: ThreadDriver, connection: StoreConnection) -> None:
        self.connection = connection
        self._driver = driver

    def run(self, steps: Steps[ResultT]) -> ResultT:
        return drive(steps, self._exchange)

    def run_verb(self, verb: Verb[ResultT]) -> ResultT:
        """All transactions of a verb become parts of this one."""
        return drive(verb, lambda unit: self.run(unit.work(Retries(self._driver.connections))))

    def _exchange(self, message: Message) -> list[list[Row]]:
        inside = tuple(call for call in message if not (call is BEGIN or call is COMMIT))
        statements = [self._driver.statements.sent(call) for call in inside]
        answers = iter(self._driver.connections.exchange(self.connection, statements) if statements else [])
        return [[] if call is BEGIN or call is COMMIT else next(answers) for call in message]


@contextmanager
def open_transaction(store: PostgresStore, *, ends_with: Message = (COMMIT,)) -> Iterator[OpenTransaction]:
    """A transaction on a connection beside the store's pool. An exception in the block rolls it back."""
    driver = store._thread_driver
    with store._connections.connect() as connection:
        driver.run_on(connection, send(BEGIN))
        try:
            yield OpenTransaction(driver, connection)
        except BaseException:
            ends_with = (ROLLBACK,)
            raise
        finally:
            if not connection.closed:
                driver.run_on(connection, send(*ends_with))


def end_open_transactions(admin: psycopg.Connection[Any]) -> None:
    """End every session that is in a transaction and waits for its client's next message."""
    ended = admin.execute(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
        "where state = 'idle in transaction' and pid <> pg_backend_pid()"
    ).fetchall()
    assert ended, "no transaction is open"
