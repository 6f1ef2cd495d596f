"""Connections for users' transactions: apart from the store's own, so that slow blocks never starve a heartbeat.

They run with the server's own settings, for the statements on them are the user's, but for how soon the server notices
that a client has vanished. At most `commit_pool_size` for sync
handlers, and as many for async ones, made when they are needed. Nothing here knows a verb.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Final, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncCursor, Cursor
from psycopg.abc import PQGen
from psycopg.rows import tuple_row

from leasemill.errors import Unavailable
from leasemill.store.postgres.wire.errors import GONE, not_reached
from leasemill.store.postgres.wire.url import SERVER_NETWORK, PostgresOptions, network_parameters, session_options

PREPARE_AFTER: Final = 5
ConnectionT = TypeVar("ConnectionT")


class CommitConnection(psycopg.Connection[tuple[Any, ...]]):
    """Its transaction ends with the block it was opened for, and by nobody else."""

    has_prepared = False
    """Whether our statements are prepared in its session."""
    is_as_before = True
    """Whether nothing of the block it was used for is left in its session."""

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """psycopg forgets all prepared statements (after DROP, ALTER or ROLLBACK), ours among them."""
        self.has_prepared = self.has_prepared and name is not None
        return super()._deallocate(name)

    def commit(self) -> NoReturn:
        raise psycopg.ProgrammingError("leave the block of ctx.commit() to commit")

    def rollback(self) -> NoReturn:
        raise psycopg.ProgrammingError("raise an error in the block of ctx.commit() to roll back")


class AsyncCommitConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """Its transaction ends with the block it was opened for, and by nobody else."""

    has_prepared = False
    """Whether our statements are prepared in its session."""
    is_as_before = True
    """Whether nothing of the block it was used for is left in its session."""

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """psycopg forgets all prepared statements (after DROP, ALTER or ROLLBACK), ours among them."""
        self.has_prepared = self.has_prepared and name is not None
        return super()._deallocate(name)

    async def commit(self) -> NoReturn:
        raise psycopg.ProgrammingError("leave the block of ctx.commit() to commit")

    async def rollback(self) -> NoReturn:
        raise psycopg.ProgrammingError("raise an error in the block of ctx.commit() to roll back")


class CommitPool:
    """Idle connections, the last used first."""

    def __init__(self, conninfo: str, options: PostgresOptions) -> None:
        self._conninfo = conninfo
        self._options = options
        self.prepares = options.prepare
        """Whether prepared statements last on this server, as far as is known."""
        self.has_settings = options.session_settings
        """Whether the server takes settings at the start of a session, as far as is known."""
        self._network = network_parameters(conninfo)
        self._is_closed = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._idle: list[CommitConnection] = []
        self._async_idle: list[AsyncCommitConnection] = []
        self._places = threading.Semaphore(self._options.commit_pool_size)
        self._async_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def close(self) -> None:
        self._forget_inherited()
        self._is_closed = True
        self.forget_idle()

    def forget_idle(self) -> None:
        """One was found broken: the others are as old."""
        while (connection := _last(self._idle)) is not None:
            connection.close()
        while (async_connection := _last(self._async_idle)) is not None:
            async_connection.pgconn.finish()

    # For sync handlers

    def take(self) -> CommitConnection:
        self._check_open()
        if not self._places.acquire(timeout=self._options.pool_timeout_s):
            raise self._exhausted()
        try:
            return _last(self._idle) or self._connect()
        except BaseException:
            self._places.release()
            raise

    def give_back(self, connection: CommitConnection) -> None:
        if connection.closed:
            self.forget_idle()
        elif self._must_end(connection):
            connection.close()
        else:
            self._undo_attributes(connection)
            connection.row_factory, connection.cursor_factory = tuple_row, Cursor
            self._idle.append(connection)
        self._places.release()

    def _connect(self) -> CommitConnection:
        try:
            return CommitConnection.connect(self._conninfo, **self._settings())
        except psycopg.OperationalError as error:
            raise not_reached(error) from error

    # For async handlers

    async def atake(self) -> AsyncCommitConnection:
        self._check_open()
        places = self._places_here()
        try:
            async with asyncio.timeout(self._options.pool_timeout_s if places.locked() else None):
                await places.acquire()
        except TimeoutError:
            raise self._exhausted() from None
        try:
            return _last(self._async_idle) or await self._aconnect()
        except BaseException:
            places.release()
            raise

    def agive_back(self, connection: AsyncCommitConnection) -> None:
        """Without a wait, so that nothing can cut it short."""
        if connection.closed:
            self.forget_idle()
        elif self._must_end(connection):
            connection.pgconn.finish()
        else:
            self._undo_attributes(connection)
            connection.row_factory, connection.cursor_factory = tuple_row, AsyncCursor
            self._async_idle.append(connection)
        self._places_here().release()

    async def _aconnect(self) -> AsyncCommitConnection:
        try:
            return await AsyncCommitConnection.connect(self._conninfo, **self._settings())
        except psycopg.OperationalError as error:
            raise not_reached(error) from error

    def _places_here(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        places = self._async_places.get(loop)
        if places is None:
            places = self._async_places[loop] = asyncio.Semaphore(self._options.commit_pool_size)
        return places

    # For both

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable("this PostgreSQL store is closed; open another")
        self._forget_inherited()

    def _forget_inherited(self) -> None:
        """In a forked child: the parent's connections are not ours to use or to close."""
        if os.getpid() != self._pid:
            self._inherited = (self._idle, self._async_idle)
            self._begin_anew()

    def _must_end(self, connection: CommitConnection | AsyncCommitConnection) -> bool:
        return self._is_closed or bool(connection.info.transaction_status) or not connection.is_as_before

    def _undo_attributes(self, connection: CommitConnection | AsyncCommitConnection) -> None:
        """Whatever the block has set on the object; its session was made as before by the server."""
        connection.prepare_threshold = self._prepare_threshold
        connection._adapters = None
        connection._notice_handlers.clear()
        connection._notify_handlers.clear()

    @property
    def _prepare_threshold(self) -> int | None:
        return PREPARE_AFTER if self.prepares else None

    def _settings(self) -> dict[str, Any]:
        options = {"options": session_options(self._conninfo, SERVER_NETWORK)} if self.has_settings else {}
        return {
            **self._network,
            **options,
            "autocommit": True,
            "prepare_threshold": self._prepare_threshold,
            "fallback_application_name": "leasemill commit",
            "client_encoding": "utf8",
        }

    def _exhausted(self) -> Unavailable:
        return Unavailable(
            f"all {self._options.commit_pool_size} connections for commits have been in use for "
            f"{self._options.pool_timeout_s:g} s: raise commit_pool_size, or make the blocks of ctx.commit() shorter"
        )


def is_lost(error: psycopg.Error, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether nothing more will be heard on it; what was sent last may have happened."""
    return connection.closed or isinstance(error, GONE)


def _last(idle: list[ConnectionT]) -> ConnectionT | None:
    """Taken in one step: threads share the list."""
    try:
        return idle.pop()
    except IndexError:
        return None
