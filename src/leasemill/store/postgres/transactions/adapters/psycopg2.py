"""A psycopg2 connection of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection, cursor

from leasemill.errors import Invalid
from leasemill.store.postgres.statements import Statement
from leasemill.store.postgres.steps import Row
from leasemill.store.postgres.transactions.adapters.base import UserConnection


class Psycopg2Adapter(UserConnection):
    is_marked = True

    def __init__(self, given: connection) -> None:
        self._connection = given
        self._was_autocommit = False

    @property
    def connection(self) -> connection:
        return self._connection

    def check(self) -> None:
        if not self._connection.closed and self._connection.encoding != "UTF8":
            raise Invalid(
                f"the connection's client_encoding is {self._connection.encoding}: connect with client_encoding=utf8"
            )

    def commits_each_statement(self) -> bool:
        return bool(self._connection.autocommit) and self._is_idle()

    def rows(self, statement: Statement, given: Mapping[str, Any]) -> list[Row]:
        with self._connection.cursor(cursor_factory=cursor) as sending:
            sending.execute(statement.pyformat(), statement.plain(given))
            return sending.fetchall()

    def begin(self) -> None:
        if self._connection.autocommit and self._is_idle():
            self._connection.autocommit = False
            self._was_autocommit = True  # it begins with the first statement

    def is_open(self) -> bool:
        return not self._is_idle()

    def flush(self) -> None:
        """Nothing is held back."""

    def commit(self) -> None:
        self._connection.commit()
        self._restore()

    def roll_back(self) -> None:
        with suppress(psycopg2.Error):  # of a connection that is lost there is nothing to roll back
            self._connection.rollback()
            self._restore()

    def _restore(self) -> None:
        if self._was_autocommit:
            self._was_autocommit = False
            self._connection.autocommit = True

    def _is_idle(self) -> bool:
        return bool(self._connection.info.transaction_status == TRANSACTION_STATUS_IDLE)
