"""A psycopg connection of the user's: our statements are sent in binary form, by cursors of our own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from leasemill.errors import Invalid
from leasemill.store.postgres.statements import Statement
from leasemill.store.postgres.steps import Row
from leasemill.store.postgres.transactions.adapters.base import AsyncUserConnection, UserConnection
from leasemill.store.postgres.transactions.own_cursors import arows, rows


class PsycopgAdapter(UserConnection):
    is_marked = True

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._block: ExitStack | None = None

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self._connection

    def check(self) -> None:
        _check_encoding(self._connection)

    def commits_each_statement(self) -> bool:
        return _commits_each_statement(self._connection)

    def rows(self, statement: Statement, given: Mapping[str, Any]) -> list[Row]:
        return rows(self._connection, statement, given)

    def begin(self) -> None:
        if _is_idle(self._connection):  # psycopg then refuses a commit or rollback inside the block
            self._block = ExitStack()
            self._block.enter_context(self._connection.transaction())

    def is_open(self) -> bool:
        return not _is_idle(self._connection)

    def flush(self) -> None:
        """Nothing is held back."""

    def commit(self) -> None:
        block, self._block = self._block, None
        if block is None:
            self._connection.commit()
        else:
            block.close()

    def roll_back(self) -> None:
        block, self._block = self._block, None
        with suppress(psycopg.Error):  # of a connection that is lost there is nothing to roll back
            if block is not None:
                block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
            elif not self._connection.closed:
                self._connection.rollback()


class AsyncPsycopgAdapter(AsyncUserConnection):
    is_marked = True

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._block: AsyncExitStack | None = None

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        return self._connection

    def check(self) -> None:
        _check_encoding(self._connection)

    def commits_each_statement(self) -> bool:
        return _commits_each_statement(self._connection)

    async def rows(self, statement: Statement, given: Mapping[str, Any]) -> list[Row]:
        return await arows(self._connection, statement, given)

    async def begin(self) -> None:
        if _is_idle(self._connection):
            self._block = AsyncExitStack()
            await self._block.enter_async_context(self._connection.transaction())

    def is_open(self) -> bool:
        return not _is_idle(self._connection)

    async def flush(self) -> None:
        """Nothing is held back."""

    async def commit(self) -> None:
        block, self._block = self._block, None
        if block is None:
            await self._connection.commit()
        else:
            await block.aclose()

    async def roll_back(self) -> None:
        block, self._block = self._block, None
        with suppress(psycopg.Error):
            if block is not None:
                await block.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)
            elif not self._connection.closed:
                await self._connection.rollback()


def _is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.info.transaction_status == TransactionStatus.IDLE


def _commits_each_statement(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return bool(connection.autocommit) and _is_idle(connection)


def _check_encoding(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    encoding = connection.info.encoding
    if encoding != "utf-8":
        raise Invalid(f"the connection's client_encoding is {encoding}: connect with client_encoding=utf8")
