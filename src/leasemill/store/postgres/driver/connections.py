"""The store's own connections: how they are made, what each session is set to, and what an error says of one.

Nothing here knows a verb, and no connection keeps any state between two uses but the statements it has prepared. Every
transaction is READ COMMITTED, whatever the server's, database's or role's default is: a statement after a lock must see
what was committed while it waited.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from leasemill.store.postgres.driver.errors import is_lost, meaning
from leasemill.store.postgres.driver.exchange import MessageExchange, Sent, StoreConnection
from leasemill.store.postgres.driver.pool import Pool
from leasemill.store.postgres.driver.url import (
    SERVER_NETWORK,
    PostgresOptions,
    SynchronousCommit,
    network_parameters,
    session_options,
)
from leasemill.store.postgres.steps import RetryTransaction, Row

LOGGER: Final = logging.getLogger("leasemill.postgres")

IDLE_S: Final = 3.0
"""Between two messages of a transaction nothing is waited for: a process that stands still there loses its locks."""
ISOLATION: Final = r"-c default_transaction_isolation=read\ committed"
SILENCE_S: Final = 5.0
"""How long after its own limit for a statement a server may stay silent."""
LOOK_EVERY_S: Final = 0.1
"""How often a thread that waits for the server looks whether the store was closed."""
EXHAUSTED: Final = "all {size} connections have been in use for {timeout_s:g} s: raise pool_size, or repeat the call"
NOT_SET: Final = (
    "synchronous_commit is %s for this role, and behind a pooler the store cannot set it to %s in every call: a crash "
    "of the server may lose what was accepted last; set it with ALTER ROLE, or connect without the pooler"
)
SILENT: Final = "the server did not respond, the connection was closed"
CONFLICTS: Final = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
NOT_PREPARED: Final = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)


class ConnectionLost(Exception):
    """There is no connection, or no more. `was_sent`: a message was on its way."""

    def __init__(self, error: psycopg.Error, *, was_sent: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.was_sent = was_sent


class Connections:
    """Keeps at most `pool_size` connections of one store, for threads and event loops."""

    def __init__(self, conninfo: str, options: PostgresOptions) -> None:
        self._conninfo = conninfo
        self._network = network_parameters(conninfo)
        self.options = options
        self.prepares = options.prepare
        """True if prepared statements last on this server, as far as is known."""
        self.has_settings = options.session_settings
        """True if the server takes settings at the start of a session, as far as is known."""
        self._pool = Pool[StoreConnection](options.pool_size, options.pool_timeout_s, EXHAUSTED)
        self.synchronous_commit: SynchronousCommit | None = options.synchronous_commit
        """The setting of our transactions, as far as is known; None: that of the server, database or role."""
        self._has_logged_durability = False
        self._gives_up = False
        self.has_connected = False
        """From then on whatever keeps us out is waited for: passwords are changed, servers replaced."""

    def take(self) -> StoreConnection:
        """A connection between two transactions, to be given back; waits for one if all are in use."""
        try:
            return self._pool.take(self.connect)
        except psycopg.Error as error:
            raise ConnectionLost(error, was_sent=False) from error

    def take_idle(self) -> StoreConnection | None:
        """For a caller that cannot wait: one that is open and not in use, to be given back."""
        return self._pool.take_idle()

    def call_before_waits(self, call: Callable[[], None]) -> None:
        """In a thread that finds all of them in use, before it waits: to give back what nobody uses any more."""
        self._pool.before_waits = call

    @property
    def are_wanted(self) -> bool:
        """True if a caller waits for a connection, or would have to; or if all are to be closed."""
        return self._pool.is_wanted

    def give_back(self, connection: StoreConnection) -> None:
        """It is closed, or it is between two transactions; in the middle of one it is closed here."""
        self._pool.give_back(connection)

    def forget(self, connection: StoreConnection) -> None:
        """It is not given back: who has it may never go on."""
        self._pool.forget(connection)

    # Messages --------------------------------------------------------------------------------------------------------

    def exchange(self, connection: StoreConnection, statements: Sequence[Sent]) -> list[list[Row]]:
        """Send a message and wait for its answer. Raises psycopg.Error, of a statement or of the connection."""
        under_way = MessageExchange(connection, statements)
        try:
            self.wait(under_way)
        except BaseException:
            connection.pgconn.finish()  # what of the answer is still to come is not known
            raise
        return under_way.rows()

    def wait(self, under_way: MessageExchange) -> None:
        """Block until the answer is complete. Raises psycopg.OperationalError if the server is silent for too long."""
        connection = under_way.connection
        given_up_at_s = time.monotonic() + connection.silent_for_s
        poll = select.poll()
        writes = under_way.flush()
        poll.register(connection.pgconn.socket, select.POLLIN | select.POLLOUT if writes else select.POLLIN)
        while True:
            if poll.poll(LOOK_EVERY_S * 1_000):
                if under_way.read():
                    return
                if writes and not (writes := under_way.flush()):
                    poll.modify(connection.pgconn.socket, select.POLLIN)
            elif self._gives_up or time.monotonic() > given_up_at_s:
                raise psycopg.OperationalError(SILENT)

    def roll_back(self, connection: StoreConnection) -> None:
        """End a transaction that an exception left open, or that was not to be committed."""
        if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.Error):  # the pool closes a connection that is still in a transaction
                self.exchange(connection, [(b"rollback", ())])

    def classified(self, error: psycopg.Error, connection: StoreConnection) -> Exception:
        """Return what an error of a transaction means: a conflict, a lost connection, or an answer to the caller."""
        if isinstance(error, CONFLICTS):
            return error
        if isinstance(error, NOT_PREPARED):
            self.do_not_prepare()
            connection.pgconn.finish()
            return RetryTransaction("prepared statements do not last")
        if is_lost(error, connection):
            connection.pgconn.finish()
            return ConnectionLost(error, was_sent=True)
        if isinstance(error, errors.ReadOnlySqlTransaction):
            # A primary that became a standby keeps its sessions: the next may reach the one that took over.
            connection.pgconn.finish()
        return meaning(error, self.options.schema)

    def do_not_prepare(self) -> None:
        LOGGER.info("prepared statements do not last here (a pooler?): continuing without them")
        self.prepares = False

    def close(self, timeout_s: float) -> None:
        """No more calls. Those under way have so long to end; then they are given up."""
        self._pool.close(timeout_s)
        self._gives_up = True

    def after_fork(self) -> None:
        self._pool.after_fork()

    # New connections -------------------------------------------------------------------------------------------------

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
            given["options"] = f"{session_options(self._conninfo, _settings(self.options))} {ISOLATION}"
        connection = StoreConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None, **given)
        connection.is_preparing = False  # for the statements of this function
        if self.options.statement_timeout_s:
            connection.silent_for_s = self.options.statement_timeout_s + SILENCE_S
        try:
            is_pooled = self._is_pooled(connection)
            self.has_connected = True
            if self.prepares and is_pooled:
                LOGGER.info("a pooler is in front of the server: continuing without prepared statements")
                self.prepares = False
            self._set_durability(connection, is_pooled)
        except BaseException:
            connection.close()
            raise
        connection.is_preparing = self.prepares
        return connection

    def _is_pooled(self, connection: StoreConnection) -> bool:
        """Whether statements reach another session than the one we connected to: another client's prepared statement
        may stand there under the name of ours."""
        ((found,),) = self.exchange(connection, [(b"select pg_backend_pid()", ())])
        return bool(found[0] != connection.info.backend_pid)

    def _set_durability(self, connection: StoreConnection, is_pooled: bool) -> None:
        """E1: a COMMIT that returned is on disk, unless the URL chooses less. Only `off` is raised: every other value
        waits for the disk, and the server may have reasons for one above `on`."""
        (((current,),),) = self.exchange(connection, [(b"select current_setting('synchronous_commit')", ())])
        wanted = self.options.synchronous_commit or ("on" if current == "off" else None)
        self.synchronous_commit = wanted
        if wanted is None or wanted == current:
            return
        level, text = logging.INFO, "synchronous_commit is %s for this role: the store's sessions set it to %s"
        if is_pooled:  # the session is not ours: the setting would stay with others
            level, text = logging.WARNING, NOT_SET
        else:
            self.exchange(connection, [(f"set synchronous_commit = {wanted}".encode(), ())])
        if not self._has_logged_durability:
            self._has_logged_durability = True
            LOGGER.log(level, text, current, wanted)


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
