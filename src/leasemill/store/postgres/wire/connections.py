"""The store's own connections, and what to do when one breaks.

A command is retried only if the caller declares it repeatable. Deadlocks and serialization failures are retried
inside, a lost connection with back-off and jitter until `retry_for_s` is over. A server that does not answer is given
up, whatever the network reports of it. Nothing here knows a verb, and no connection keeps any state
between two uses. Every transaction is READ COMMITTED, whatever the server's, database's or role's default is: a
statement after a lock must see what was committed while it waited.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from leasemill.errors import Unavailable
from leasemill.store.postgres.wire.errors import is_lost, meaning, not_let_in, not_reached
from leasemill.store.postgres.wire.pool import Pool
from leasemill.store.postgres.wire.url import (
    SERVER_NETWORK,
    PostgresOptions,
    SynchronousCommit,
    network_parameters,
    session_options,
)

LOGGER: Final = logging.getLogger("leasemill.postgres")
ResultT = TypeVar("ResultT")
Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0
CONFLICT_TRIES: Final = 10
IDLE_S: Final = 3.0
"""Between two statements of a transaction nothing is waited for: a process that stands still there loses its locks."""
ISOLATION: Final = r"-c default_transaction_isolation=read\ committed"
SILENCE_S: Final = 5.0
"""How long after its own limit for a statement a server may stay silent."""
EXHAUSTED: Final = "all {size} connections have been in use for {timeout_s:g} s: raise pool_size, or repeat the call"
NOT_SET: Final = (
    "synchronous_commit is %s for this role, and behind a pooler the store cannot set it to %s in every call: a crash "
    "of the server may lose what was accepted last; set it with ALTER ROLE, or connect without the pooler"
)
CONFLICTS: Final = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
NOT_PREPARED: Final = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)


class Moved(Exception):
    """What was read has changed before it was locked: try again."""


class _Lost(Exception):
    """There is no connection, or no more."""

    def __init__(self, error: psycopg.Error, *, was_sent: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.was_sent = was_sent


class StoreConnection(psycopg.Connection[tuple[Any, ...]]):
    """Gives up a server that does not answer, and any server when the store was closed."""

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
                    raise psycopg.OperationalError("the server did not respond, the connection was closed")
                state = steps.send(ready)
        except StopIteration as end:
            answer: ResultT = end.value
            return answer


def answers(pgconn: PGconn, arrived: Callable[[int, PGresult], None] | None = None) -> PQGen[list[PGresult]]:
    """To a pipeline: one result for each command up to the sync, and that of the sync. `arrived` is called with each,
    and its number, as soon as it is there."""
    while pgconn.flush():
        ready = yield Wait.RW
        if ready and ready & Ready.R:
            pgconn.consume_input()
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            ready = yield Wait.R
            if ready:
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            continue
        if arrived is not None:
            arrived(len(results), result)
        results.append(result)
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results


class Connections:
    """The store's own: at most `pool_size`, and what to do when one breaks."""

    def __init__(self, conninfo: str, options: PostgresOptions) -> None:
        self._conninfo = conninfo
        self._network = network_parameters(conninfo)
        self._options = options
        self.prepares = options.prepare
        """Whether prepared statements last on this server, as far as is known."""
        self.has_settings = options.session_settings
        """Whether the server takes settings at the start of a session, as far as is known."""
        self._pool = Pool[StoreConnection](options.pool_size, options.pool_timeout_s, EXHAUSTED)
        self.synchronous_commit: SynchronousCommit | None = options.synchronous_commit
        """What our transactions set, as far as is known; None: what the server, database or role has."""
        self._has_logged_durability = False
        self._gives_up = False
        self._has_connected = False
        """From then on whatever keeps us out is waited for: passwords are changed, servers replaced."""

    def run(self, work: Callable[[Connection], ResultT], *, is_repeatable: bool = True) -> ResultT:
        """What `work` returns; it gets a connection in autocommit mode, and may be called again."""
        deadline = time.monotonic() + self._options.retry_for_s
        pause_s = FIRST_PAUSE_S
        conflicts = 0
        while True:
            try:
                return self._run_once(work)
            except (Moved, *CONFLICTS) as error:
                conflicts += 1
                if conflicts >= CONFLICT_TRIES:
                    raise Unavailable(
                        f"PostgreSQL refused {conflicts} times in a row: {error}; repeat the call"
                    ) from error
                time.sleep(random.uniform(0, 0.005 * conflicts))
            except _Lost as lost:
                if not self._has_connected and (refusal := not_let_in(lost.error)) is not None:
                    raise refusal from lost.error
                if (lost.was_sent and not is_repeatable) or time.monotonic() + pause_s > deadline:
                    raise not_reached(lost.error) from lost.error
                time.sleep(random.uniform(0.5, 1.0) * pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _run_once(self, work: Callable[[Connection], ResultT]) -> ResultT:
        try:
            connection = self._pool.take(self.connect)
        except psycopg.Error as error:
            raise _Lost(error, was_sent=False) from error
        is_usable = True
        try:
            return work(connection)
        except CONFLICTS:
            raise
        except NOT_PREPARED as error:
            is_usable = False
            self.do_not_prepare()
            raise Moved("prepared statements do not last") from error
        except psycopg.Error as error:
            if not is_lost(error, connection):
                # A primary that became a standby keeps its sessions: the next may reach the one that took over.
                is_usable = not isinstance(error, errors.ReadOnlySqlTransaction)
                raise meaning(error, self._options.schema) from error
            is_usable = False
            raise _Lost(error, was_sent=True) from error
        finally:
            self._pool.give_back(connection, is_usable=is_usable)

    def take_idle(self) -> StoreConnection | None:
        """For who cannot wait: one that is open and not in use, to be given back."""
        return self._pool.take_idle()

    def call_before_waits(self, call: Callable[[], None]) -> None:
        """In a thread that finds all of them in use, before it waits: to give back what nobody uses any more."""
        self._pool.before_waits = call

    @property
    def are_wanted(self) -> bool:
        """Whether somebody waits for one, or would have to; or all are to be closed."""
        return self._pool.is_wanted

    def give_back(self, connection: StoreConnection) -> None:
        """It is closed, or it is between two transactions."""
        self._pool.give_back(connection)

    def forget(self, connection: StoreConnection) -> None:
        """It is not given back: who has it may never go on."""
        self._pool.forget(connection)

    def do_not_prepare(self) -> None:
        LOGGER.info("prepared statements do not last here (a pooler?): continuing without them")
        self.prepares = False

    def close(self, timeout_s: float) -> None:
        """No more calls. Those under way have so long to end; then they are given up."""
        self._pool.close(timeout_s)
        self._gives_up = True

    def after_fork(self) -> None:
        self._pool.after_fork()

    def connect(self) -> StoreConnection:
        """A connection for the pool, or outside it, for LISTEN."""
        try:
            return self._connected(self.has_settings)
        except psycopg.OperationalError as error:
            if not self.has_settings or "startup parameter" not in str(error):
                raise
            LOGGER.info("the server accepts no startup options (a pooler?): continuing without our own timeouts")
            self.has_settings = False
            return self._connected(False)

    def _connected(self, has_settings: bool) -> StoreConnection:
        given = {"fallback_application_name": "leasemill", "client_encoding": "utf8", **self._network}
        if has_settings:
            given["options"] = f"{session_options(self._conninfo, _settings(self._options))} {ISOLATION}"
        connection = StoreConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None, **given)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # of BEGIN, where options are not taken
        connection.must_end = lambda: self._gives_up
        if self._options.statement_timeout_s:
            connection.silent_for_s = self._options.statement_timeout_s + SILENCE_S
        self._has_connected = True
        is_pooled = _is_pooled(connection)
        if self.prepares and is_pooled:
            LOGGER.info("a pooler is in front of the server: continuing without prepared statements")
            self.prepares = False
        self._set_durability(connection, is_pooled)
        if self.prepares:
            connection.prepare_threshold = 0
        return connection

    def _set_durability(self, connection: Connection, is_pooled: bool) -> None:
        """E1: a COMMIT that returned is on disk, unless the URL chooses less. Only `off` is raised: every other value
        waits for the disk, and the server may have reasons for one above `on`."""
        (current,) = connection.execute("select current_setting('synchronous_commit')").fetchone() or ("on",)
        wanted = self._options.synchronous_commit or ("on" if current == "off" else None)
        self.synchronous_commit = wanted
        if wanted is None or wanted == current:
            return
        level, text = logging.INFO, "synchronous_commit is %s for this role: the store's sessions set it to %s"
        if is_pooled:  # the session is not ours: the setting would stay with others
            level, text = logging.WARNING, NOT_SET
        else:
            connection.execute(f"set synchronous_commit = {wanted}".encode())
        if not self._has_logged_durability:
            self._has_logged_durability = True
            LOGGER.log(level, text, current, wanted)


def _is_pooled(connection: Connection) -> bool:
    """Whether statements reach another session than the one we connected to: another client's prepared statement may
    stand there under the name of ours."""
    row = connection.execute("select pg_backend_pid()").fetchone()
    return row is None or row[0] != connection.info.backend_pid


def _settings(options: PostgresOptions) -> dict[str, str]:
    """Every statement of the fast path follows indexes: a plan made while a table was empty must not outlive that."""
    return {
        **SERVER_NETWORK,
        "statement_timeout": f"{options.statement_timeout_s * 1000:.0f}",
        "lock_timeout": f"{options.lock_timeout_s * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{min(options.statement_timeout_s, IDLE_S) * 1000:.0f}",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "jit": "off",
        "array_nulls": "on",
    }
