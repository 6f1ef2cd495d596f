"""A connection of Django's: our statements go through its cursors.

So the query log and `assertNumQueries` see them, errors are Django's own, and one inside `transaction.atomic()` keeps
the block from committing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from django.db import DatabaseError, transaction

from leasemill.errors import Invalid
from leasemill.store.postgres.statements import Statement
from leasemill.store.postgres.steps import Row
from leasemill.store.postgres.transactions.adapters.base import UserConnection

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

log: Final = logging.getLogger("leasemill.job")


class DjangoAdapter(UserConnection):
    """`connections[alias]`, in the thread it belongs to."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._atomic: transaction.Atomic | None = None
        self._has_committed = False

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return self._connection

    def check(self) -> None:
        if self._connection.vendor != "postgresql":
            raise Invalid(
                f"the alias {self._connection.alias!r} is a database of {self._connection.vendor}: use one that is the "
                "store's own PostgreSQL database"
            )

    def commits_each_statement(self) -> bool:
        return not self._connection.in_atomic_block and self._connection.get_autocommit()

    def rows(self, statement: Statement, given: Mapping[str, Any]) -> list[Row]:
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(statement.pyformat(), statement.plain(given))
            except DatabaseError:
                if self._connection.in_atomic_block:
                    self._connection.set_rollback(True)  # as the ORM does: PostgreSQL has aborted the transaction
                raise
            return cursor.fetchall() if cursor.description else []

    def begin(self) -> None:
        alias = self._connection.alias
        if not self._connection.in_atomic_block and not self._connection.get_autocommit():
            raise Invalid(
                f"the connection {alias!r} is not in autocommit mode, so Django leaves COMMIT to you: set AUTOCOMMIT "
                "back to True, for ctx.commit() to end its transaction"
            )
        try:
            self._atomic = transaction.atomic(using=alias, durable=True)
            self._atomic.__enter__()
        except RuntimeError:
            self._atomic = None
            raise Invalid(
                "ctx.commit() was entered inside transaction.atomic(), which would end after it: let ctx.commit() be "
                "the outermost block"
            ) from None
        self._has_committed = False
        transaction.on_commit(self._note_commit, using=alias)

    def _note_commit(self) -> None:
        self._has_committed = True

    def is_open(self) -> bool:
        return self._connection.in_atomic_block

    def flush(self) -> None:
        """The ORM holds nothing back."""

    def commit(self) -> None:
        assert self._atomic is not None
        atomic, self._atomic = self._atomic, None
        try:
            atomic.__exit__(None, None, None)
        except Exception as error:  # of the driver: passed on; or of the user's on_commit functions
            if not self._has_committed:
                raise
            # A function of transaction.on_commit failed: what has committed stays so.
            log.error("a function of transaction.on_commit failed after the job's commit", exc_info=error)
        if not self._has_committed:  # a rollback was asked for, or a test's transaction goes on around it
            raise transaction.TransactionManagementError("Django did not commit the transaction of ctx.commit()")

    def roll_back(self) -> None:
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            error = transaction.TransactionManagementError("the commit of the job was not made")
            atomic.__exit__(type(error), error, None)
