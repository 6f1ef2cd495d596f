"""Connections: a bounded pool, and what to do when one breaks.

A command is tried again only if repeating it is safe; the caller says so. Deadlocks and serialization failures are
tried again inside, a lost connection with back-off and jitter until `retry_for_s` is over. A server that does not
answer is given up, whatever the network says of it. Nothing here knows a verb, and no connection keeps any state
between two uses. Every transaction is READ COMMITTED, whatever the server's, database's or role's default is: a
statement after a lock must see what was committed while it waited.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen

from leasemill.errors import LeasemillError, Unavailable
from leasemill.store.postgres.wire.errors import GONE, meaning, not_let_in, not_reached
from leasemill.store.postgres.wire.url import SERVER_NETWORK, PostgresOptions, network_parameters, session_options

LOGGER: Final = logging.getLogger("leasemill.postgres")
ResultT = TypeVar("ResultT")
Connection = psycopg.Connection[tuple[Any, ...]]

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0
CONFLICT_TRIES: Final = 10
IDLE_S: Final = 3.0
"""Between two statements of a transaction nothing is waited for: a process that stands still there loses its locks."""
ISOLATION: Final = r"-c default_transaction_isolation=read\ committed"
SILENCE_S: Final = 5.0
"""How long after its own limit for a statement a server may stay silent."""
CONFLICTS: Final = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
NOT_PREPARED: Final = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)


class Moved(Exception):
    """What was read has changed before it was locked: begin anew."""


class StoreConnection(psycopg.Connection[tuple[Any, ...]]):
    """Gives up a server that does not answer, and everything when the pool says so."""

    silent_for_s = math.inf
    must_end: Callable[[], bool] = staticmethod(lambda: False)

    def wait(self, gen: PQGen[ResultT], *args: Any, **kwargs: Any) -> ResultT:
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, steps: PQGen[ResultT]) -> PQGen[ResultT]:
        """psycopg resumes its generators ten times a second, whether or not there is anything to read."""
        given_up_at_s = time.monotonic() + self.silent_for_s
        try:
            state = next(steps)
            while True:
                ready = yield state
                if not ready and (self.must_end() or time.monotonic() > given_up_at_s):
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server did not answer, the connection was closed")
                state = steps.send(ready)
        except StopIteration as end:
            answer: ResultT = end.value
            return answer


class Pool:
    """At most `pool_size` connections, the last used first."""

    def __init__(self, conninfo: str, options: PostgresOptions) -> None:
        self._conninfo = conninfo
        self._network = network_parameters(conninfo)
        self._options = options
        self.prepares = options.prepare
        """Whether prepared statements last on this server, as far as is known."""
        self.has_settings = options.session_settings
        """Whether the server takes settings at the start of a session, as far as is known."""
        self._changed = threading.Condition()
        self._idle: list[Connection] = []
        self._count = 0
        self._is_closed = False
        self._gives_up = False
        self._has_connected = False
        """From then on whatever keeps us out is waited for: passwords are changed, servers replaced."""
        self._pid = os.getpid()

    def run(self, work: Callable[[Connection], ResultT], *, is_repeatable: bool = True) -> ResultT:
        """What `work` answers; it gets a connection in autocommit mode, and may be called again."""
        deadline = time.monotonic() + self._options.retry_for_s
        pause_s = FIRST_PAUSE_S
        conflicts = 0
        while True:
            connection: Connection | None = None
            was_sent = False
            try:
                connection = self._take()
                was_sent = True
                return work(connection)
            except LeasemillError:
                raise
            except (Moved, *CONFLICTS) as error:
                conflicts += 1
                if conflicts >= CONFLICT_TRIES:
                    raise Unavailable(
                        f"PostgreSQL refused {conflicts} times in a row: {error}; repeat the call"
                    ) from error
                time.sleep(random.uniform(0, 0.005 * conflicts))
            except NOT_PREPARED:
                LOGGER.info("prepared statements do not last here (a pooler?): going on without")
                self.prepares = False
                self._discard(connection)
                connection = None
            except psycopg.Error as error:
                is_lost = connection is None or connection.broken or connection.closed or isinstance(error, GONE)
                if is_lost:
                    self._discard(connection)
                    connection = None
                if not is_lost:
                    raise meaning(error, self._options.schema) from error
                if not self._has_connected and (refusal := not_let_in(error)) is not None:
                    raise refusal from error
                if (was_sent and not is_repeatable) or time.monotonic() + pause_s > deadline:
                    raise not_reached(error) from error
                time.sleep(random.uniform(0.5, 1.0) * pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            finally:
                if connection is not None:
                    self._give_back(connection)

    def connect(self) -> Connection:
        """A connection outside the pool, for LISTEN."""
        return self._connect()

    def close(self, timeout_s: float) -> None:
        """No more calls. Those under way have so long to end; then they are given up."""
        if os.getpid() != self._pid:
            self._forget_inherited()
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._count -= len(idle)
            self._changed.notify_all()
        for connection in idle:
            connection.close()
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0, timeout_s)
        self._gives_up = True

    def _take(self) -> Connection:
        if os.getpid() != self._pid:
            self._forget_inherited()
        with self._changed:
            if not self._changed.wait_for(self._may_take, self._options.pool_timeout_s):
                raise Unavailable(
                    f"all {self._options.pool_size} connections have been in use for "
                    f"{self._options.pool_timeout_s:g} s: raise pool_size, or repeat the call"
                )
            if self._is_closed:
                raise Unavailable("this PostgreSQL store is closed; open another")
            if self._idle:
                return self._idle.pop()
            self._count += 1
        try:
            return self._connect()
        except BaseException:
            self._discard(None)
            raise

    def _may_take(self) -> bool:
        return self._is_closed or bool(self._idle) or self._count < self._options.pool_size

    def _give_back(self, connection: Connection) -> None:
        if connection.broken or connection.closed or connection.info.transaction_status:
            self._discard(connection)
            return
        with self._changed:
            if not self._is_closed:
                self._idle.append(connection)
                self._changed.notify()
                return
        self._discard(connection)

    def _discard(self, connection: Connection | None) -> None:
        if connection is not None:
            connection.close()
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def _forget_inherited(self) -> None:
        """In a forked child: the parent's connections are not ours to use or to close."""
        self._changed = threading.Condition()
        self._inherited, self._idle = self._idle, []
        self._count = 0
        self._pid = os.getpid()

    def _connect(self) -> Connection:
        try:
            return self._connected(self.has_settings)
        except psycopg.OperationalError as error:
            if not self.has_settings or "startup parameter" not in str(error):
                raise
            LOGGER.info("the server takes no startup options (a pooler?): going on without timeouts of our own")
            self.has_settings = False
            return self._connected(False)

    def _connected(self, has_settings: bool) -> Connection:
        given = {"fallback_application_name": "leasemill", **self._network}
        if has_settings:
            given["options"] = f"{session_options(self._conninfo, _settings(self._options))} {ISOLATION}"
        connection = StoreConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None, **given)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # of BEGIN, where options are not taken
        connection.must_end = lambda: self._gives_up
        if self._options.statement_timeout_s:
            connection.silent_for_s = self._options.statement_timeout_s + SILENCE_S
        self._has_connected = True
        if self.prepares and _is_pooled(connection):
            LOGGER.info("a pooler stands before the server: going on without prepared statements")
            self.prepares = False
        if self.prepares:
            connection.prepare_threshold = 0
        return connection


def _is_pooled(connection: Connection) -> bool:
    """Whether statements reach a session that is not the one we were told of: then another's prepared statement may
    stand there under the name of ours."""
    row = connection.execute("select pg_backend_pid()").fetchone()
    return row is None or row[0] != connection.info.backend_pid


def _settings(options: PostgresOptions) -> dict[str, str]:
    """Every hot statement is a walk along indexes: a plan made while a table was empty must not outlive that."""
    return {
        **SERVER_NETWORK,
        "statement_timeout": f"{options.statement_timeout_s * 1000:.0f}",
        "lock_timeout": f"{options.lock_timeout_s * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{min(options.statement_timeout_s, IDLE_S) * 1000:.0f}",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "jit": "off",
    }
