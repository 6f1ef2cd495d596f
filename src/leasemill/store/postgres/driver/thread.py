"""The driver that blocks a thread: it runs the transactions of a verb, and repeats those that were disturbed.

A transaction is repeated when another one was in its way, and, if it is repeatable, when its connection was lost: with
back-off and jitter until `retry_for_s` is over. What must never happen here: a result of a transaction of which it is
not known that it was committed, or a connection that goes back in the middle of one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg import sql

from leasemill.errors import Unavailable
from leasemill.store.postgres.driver.connections import CONFLICTS, ConnectionLost, Connections
from leasemill.store.postgres.driver.errors import not_let_in, not_reached
from leasemill.store.postgres.driver.exchange import StoreConnection
from leasemill.store.postgres.statements import Statements
from leasemill.store.postgres.steps import Message, RetryTransaction, Row, Steps, Transact, Verb
from leasemill.store.steps import drive

ResultT = TypeVar("ResultT")

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0
CONFLICT_TRIES: Final = 10
DISTURBED: Final = (RetryTransaction, *CONFLICTS, ConnectionLost)
"""The errors after which a transaction may be attempted again."""


class Retries:
    """Counts the attempts at one transaction, and decides whether there is another."""

    def __init__(self, connections: Connections, *, is_repeatable: bool = True) -> None:
        self._connections = connections
        self._is_repeatable = is_repeatable
        self._deadline_s = time.monotonic() + connections.options.retry_for_s
        self._pause_s = FIRST_PAUSE_S
        self._conflicts = 0
        self.number = 1
        self.may_have_happened = False

    def next_in_s(self, error: Exception) -> float:
        """How long to wait before the next attempt; raises the caller's error if there is none."""
        if not isinstance(error, ConnectionLost):
            self._conflicts += 1
            if self._conflicts >= CONFLICT_TRIES:
                message = f"PostgreSQL refused {self._conflicts} times in a row: {error}; repeat the call"
                raise Unavailable(message) from error
            self.number += 1
            return random.uniform(0, 0.005 * self._conflicts)
        if not self._connections.has_connected and (refusal := not_let_in(error.error)) is not None:
            raise refusal from error.error
        is_over = time.monotonic() + self._pause_s > self._deadline_s
        if is_over or (error.was_sent and not self._is_repeatable):
            raise not_reached(error.error) from error.error
        self.number += 1
        self.may_have_happened |= error.was_sent
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return random.uniform(0.5, 1.0) * pause_s


class Begun(NamedTuple):
    """Steps that another driver has begun, and the message that they wait to have sent. No transaction is open."""

    steps: Steps[Any]
    message: Message | None


class ThreadDriver:
    """Runs verbs in the thread that calls."""

    def __init__(self, connections: Connections, statements: Statements) -> None:
        self.connections = connections
        self.statements = statements

    def run(self, verb: Verb[ResultT]) -> ResultT:
        return drive(verb, self.transact)

    def transact(
        self, unit: Transact, retries: Retries | None = None, begun: Begun | None = None, pause_s: float = 0.0
    ) -> Any:
        """Run a transaction to its end; if another driver has left it, from there: begun, or before an attempt."""
        retries = retries or Retries(self.connections, is_repeatable=unit.is_repeatable)

        def work(connection: StoreConnection) -> Any:
            nonlocal begun
            steps, message = begun or Begun(unit.work(retries), None)
            begun = None
            return drive(steps, partial(self._exchange, connection), message)

        return self._repeat(work, retries, pause_s)

    def with_connection(self, work: Callable[[StoreConnection], ResultT]) -> ResultT:
        """Return what `work` returns, which sends statements of its own, and may be called again."""
        return self._repeat(work, Retries(self.connections))

    def _repeat(self, work: Callable[[StoreConnection], ResultT], retries: Retries, pause_s: float = 0.0) -> ResultT:
        # The work is run from its beginning each time: steps that a failed attempt had taken are worth nothing, since
        # what they read was rolled back. Between attempts no connection is kept, so that a caller who waits may have
        # it.
        while True:
            if pause_s:
                time.sleep(pause_s)
            try:
                connection = self.connections.take()
                try:
                    return work(connection)
                except psycopg.Error as error:
                    raise self.connections.classified(error, connection) from error
                finally:
                    self.connections.roll_back(connection)
                    self.connections.give_back(connection)
            except DISTURBED as error:
                pause_s = retries.next_in_s(error)

    def run_on(self, connection: StoreConnection, steps: Steps[ResultT]) -> ResultT:
        """Run steps on one connection, and leave open what they leave open."""
        return drive(steps, partial(self._exchange, connection))

    def listen(self, connection: StoreConnection, channel: str) -> None:
        """Have the server notify this connection of what is sent on a channel."""
        statement = sql.SQL("listen {}").format(sql.Identifier(channel)).as_bytes(None)
        self.connections.exchange(connection, [(statement, ())])

    def _exchange(self, connection: StoreConnection, message: Message) -> list[list[Row]]:
        return self.connections.exchange(connection, [self.statements.sent(call) for call in message])
