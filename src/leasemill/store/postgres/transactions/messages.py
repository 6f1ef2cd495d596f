"""The two messages of a user's transaction: how it begins, and how it ends.

Each is several statements sent at once, which saves half of the round trips. What ends a transaction also resets the
session, so that nothing a block has set reaches the next one, in another job. Values are quoted by libpq; what is sent
here is never the user's SQL.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import psycopg
from psycopg import sql
from psycopg.pq import Escaping

from leasemill.errors import Refused
from leasemill.kernel import commands as c
from leasemill.store.postgres.driver.commit_connections import AsyncCommitConnection, CommitConnection
from leasemill.store.postgres.statements import Statements

BlockConnection: TypeAlias = CommitConnection | AsyncCommitConnection

NOT_HELD: Final = "LM001"
"""The SQLSTATE of a commit that must not happen: of `commit_lease`, docs/postgres.md."""
ENDED_INSIDE: Final = "LM003"
"""The SQLSTATE of a commit in another transaction than the one that was begun: the user has ended that one."""
RESET: Final = b";close all;set session authorization default;reset all;unlisten *;discard temp;discard sequences;"
"""DISCARD ALL in parts: it cannot follow others in a message, and would take psycopg's prepared statements along."""


class Messages:
    """The messages at both ends of a user's transaction."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._schema = sql.Identifier(statements.schema).as_bytes(None)
        self._reset = RESET + self._call("is_session_used")

    def begin(self, connection: BlockConnection, lease: c.LeaseRef, idle_ms: int) -> bytes:
        """Gives the lease's status. From here the transaction may stand still as long as its handler may run."""
        status = self._call("lease_status", *_quoted(connection, lease.job_id, lease.token), self._now())
        limit = b"set local idle_in_transaction_session_timeout=%d;" % idle_ms
        mark = b"set local leasemill.block=%s;" % _quoted(connection, lease.token)[0]
        durability = connection.synchronous_commit
        durable = b"" if durability is None else b"set local synchronous_commit=%s;" % durability.encode()
        return b"begin isolation level read committed;" + durable + limit + mark + status

    def end(self, connection: BlockConnection, command: c.Commit) -> bytes:
        """Gives whether the session must not be used again; fails with NOT_HELD before COMMIT, and with ENDED_INSIDE if
        this is not the transaction that was begun."""
        result = None if command.result is None else command.result.decode()
        values = _quoted(connection, command.job_id, command.token, result)
        marked = self._function("commit_lease", *values, self._now(), b"true") + b"::int4"
        other = self._function("fail", b"'%s'" % ENDED_INSIDE.encode(), b"''")
        guard = b"select case when current_setting('leasemill.block',true)=%s then %s else %s end"
        return guard % (values[1], marked, other) + b";commit" + self._reset

    def roll_back(self) -> bytes:
        """Gives whether the session must not be used again."""
        return b"rollback" + self._reset

    def _call(self, function: str, *values: bytes) -> bytes:
        return b"select " + self._function(function, *values)

    def _function(self, name: str, *values: bytes) -> bytes:
        return b"%s.%s(%s)" % (self._schema, name.encode(), b",".join(values))

    def _now(self) -> bytes:
        now = self._statements.now()
        return b"null" if now is None else b"%d" % now


def _quoted(connection: BlockConnection, *values: str | None) -> list[bytes]:
    quote = Escaping(connection.pgconn).escape_literal
    return [b"null" if value is None else quote(value.encode()) for value in values]


def ended_inside() -> Refused:
    return Refused(
        "the transaction of ctx.commit() was ended inside its block, so this commit is refused: "
        "leave commit and rollback to the block"
    )


def is_not_held(error: psycopg.Error) -> bool:
    """Return True if it is `commit_lease` that failed, as it is meant to."""
    return error.sqlstate == NOT_HELD


def is_reset(value: str | None) -> bool:
    """Return True if the last value of a message that ends a transaction is that its session may be used again."""
    return value == "f"
