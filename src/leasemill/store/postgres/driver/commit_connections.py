"""Connections for users' transactions: apart from the store's own, so that slow blocks never starve a heartbeat.

They run with the server's own settings, for the statements on them are the user's, except for how soon the server
notices that a client has vanished, and how durable a COMMIT is. Made when they are needed. Nothing here knows a verb.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn

import psycopg
from psycopg import AsyncCursor, AsyncServerCursor, Cursor, ServerCursor, adapters
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from leasemill.store.postgres.driver.connections import Connections
from leasemill.store.postgres.driver.errors import not_reached
from leasemill.store.postgres.driver.pool import Pool
from leasemill.store.postgres.driver.url import (
    SERVER_NETWORK,
    PostgresOptions,
    SynchronousCommit,
    network_parameters,
    session_options,
)

PREPARE_AFTER: Final = 5
EXHAUSTED: Final = (
    "all {size} connections for commits have been in use for {timeout_s:g} s: "
    "raise commit_pool_size, or make the blocks of ctx.commit() shorter"
)


class _OfBlocks(psycopg.BaseConnection[tuple[Any, ...]]):
    """Its transaction ends with the block it was opened for, and by nothing else. What a block sets on the object, its
    adapters and handlers among them, is for that block alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_reset = True
        """True if nothing of the last block is left in its session."""
        self.synchronous_commit: SynchronousCommit | None = None
        """The setting that its transactions begin with; None: the session's."""
        self._block_adapters: AdaptersMap | None = None
        self._remove_handlers: list[Callable[[], None]] = []

    @property
    def adapters(self) -> AdaptersMap:
        if self._block_adapters is None:
            self._block_adapters = AdaptersMap(adapters)
        return self._block_adapters

    def add_notice_handler(self, callback: Any) -> None:
        super().add_notice_handler(callback)
        self._remove_handlers.append(partial(self.remove_notice_handler, callback))

    def add_notify_handler(self, callback: Any) -> None:
        super().add_notify_handler(callback)
        self._remove_handlers.append(partial(self.remove_notify_handler, callback))

    def forget_block(self) -> None:
        self._block_adapters = None
        for remove in self._remove_handlers:
            with suppress(ValueError):  # the block removed it itself
                remove()
        self._remove_handlers.clear()

    def commit(self) -> NoReturn:
        raise psycopg.ProgrammingError("leave the block of ctx.commit() to commit")

    def rollback(self) -> NoReturn:
        raise psycopg.ProgrammingError("raise an error in the block of ctx.commit() to roll back")


class CommitConnection(_OfBlocks, psycopg.Connection[tuple[Any, ...]]):
    """In a sync handler."""

    def forget_block(self) -> None:
        super().forget_block()
        self.row_factory, self.cursor_factory, self.server_cursor_factory = tuple_row, Cursor, ServerCursor


class AsyncCommitConnection(_OfBlocks, psycopg.AsyncConnection[tuple[Any, ...]]):
    """In an async handler."""

    def forget_block(self) -> None:
        super().forget_block()
        self.row_factory, self.cursor_factory, self.server_cursor_factory = tuple_row, AsyncCursor, AsyncServerCursor


class CommitConnections:
    """At most `commit_pool_size` for sync handlers, and as many for async ones."""

    def __init__(self, conninfo: str, options: PostgresOptions, own: Connections) -> None:
        self._conninfo = conninfo
        self._network = network_parameters(conninfo)
        self._own = own
        self._pool = Pool[CommitConnection](options.commit_pool_size, options.pool_timeout_s, EXHAUSTED)
        self._async_pool = Pool[AsyncCommitConnection](options.commit_pool_size, options.pool_timeout_s, EXHAUSTED)

    def take(self) -> CommitConnection:
        connection = self._pool.take(self._connect)
        connection.synchronous_commit = self._own.synchronous_commit
        return connection

    async def atake(self) -> AsyncCommitConnection:
        connection = await self._async_pool.atake(self._aconnect)
        connection.synchronous_commit = self._own.synchronous_commit
        return connection

    def give_back(self, connection: CommitConnection | AsyncCommitConnection) -> None:
        connection.forget_block()
        connection.prepare_threshold = self._prepare_threshold
        if isinstance(connection, CommitConnection):
            self._pool.give_back(connection, is_usable=connection.is_reset)
        else:
            self._async_pool.give_back(connection, is_usable=connection.is_reset)

    def do_not_prepare(self) -> None:
        self._own.do_not_prepare()

    def close(self) -> None:
        self._pool.close(0.0)
        self._async_pool.close(0.0)

    def after_fork(self) -> None:
        self._pool.after_fork()
        self._async_pool.after_fork()

    def _connect(self) -> CommitConnection:
        try:
            return CommitConnection.connect(self._conninfo, **self._settings())
        except psycopg.OperationalError as error:
            raise not_reached(error) from error

    async def _aconnect(self) -> AsyncCommitConnection:
        try:
            return await AsyncCommitConnection.connect(self._conninfo, **self._settings())
        except psycopg.OperationalError as error:
            raise not_reached(error) from error

    @property
    def _prepare_threshold(self) -> int | None:
        return PREPARE_AFTER if self._own.prepares else None

    def _settings(self) -> dict[str, Any]:
        options = {"options": session_options(self._conninfo, SERVER_NETWORK)} if self._own.has_settings else {}
        return {
            **self._network,
            **options,
            "autocommit": True,
            "prepare_threshold": self._prepare_threshold,
            "fallback_application_name": "leasemill commit",
            "client_encoding": "utf8",
        }
