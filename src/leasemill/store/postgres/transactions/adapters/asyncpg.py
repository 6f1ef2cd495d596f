"""A connection of asyncpg's, of its own or lent by a pool."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import asyncpg

from leasemill.errors import Invalid
from leasemill.store.postgres.statements import Statement
from leasemill.store.postgres.steps import Row
from leasemill.store.postgres.transactions.adapters.base import AsyncUserConnection


class AsyncpgAdapter(AsyncUserConnection):
    is_marked = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transaction: Any = None

    @property
    def connection(self) -> Any:
        return self._connection

    def check(self) -> None:
        encoding = self._connection.get_settings().client_encoding
        if encoding.lower() not in {"utf8", "utf-8"}:
            raise Invalid(f"the connection's client_encoding is {encoding}: connect without setting it")

    def commits_each_statement(self) -> bool:
        return False

    async def rows(self, statement: Statement, given: Mapping[str, Any]) -> list[Row]:
        if not (self._connection.is_in_transaction() or self._connection.is_closed()):
            raise Invalid(
                "this asyncpg connection is not in a transaction, so the job would be enqueued even if yours "
                "were rolled back: write `async with connection.transaction()` around both, or enqueue without using()"
            )
        return [
            tuple(row) for row in await self._connection.fetch(statement.dollar(), *statement.plain(given).values())
        ]

    async def begin(self) -> None:
        if self._connection.is_in_transaction():
            raise Invalid(
                "this asyncpg connection is in a transaction, which only its own block can end: "
                "write ctx.commit(connection) outside of connection.transaction()"
            )
        transaction = self._connection.transaction(isolation="read_committed")
        await transaction.start()
        self._transaction = transaction

    def is_open(self) -> bool:
        return bool(self._connection.is_in_transaction())

    async def flush(self) -> None:
        """A connection holds nothing back."""

    async def commit(self) -> None:
        transaction, self._transaction = self._transaction, None
        await transaction.commit()

    async def roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            with suppress(
                asyncpg.PostgresError, asyncpg.InterfaceError, OSError
            ):  # of a lost one there is nothing to roll back
                await transaction.rollback()
