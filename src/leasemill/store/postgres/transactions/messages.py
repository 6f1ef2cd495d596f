"""The two messages of a user's transaction: how it begins, and how it ends.

Each is several statements sent at once, which saves half of the round trips. What ends a transaction also makes the
session as it was, so that nothing a block has set reaches the next one, in another job. Our statements in them are
prepared by name, or written out where prepared statements do not last. Values are quoted by libpq; what is sent here
is never the user's SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.pq import Escaping

from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.statements import FILES, statement

NOT_HELD: Final = "leasemill: not held"
BEGIN: Final = b"begin isolation level read committed;"
BY_INDEX: Final = b"set local enable_seqscan=off;set local enable_bitmapscan=off;"
"""For our statements alone: a plan made while the table of leases was nearly empty would read all of it, for ever."""
AS_BEFORE: Final = b";close all;set session authorization default;reset all;unlisten *;discard temp;discard sequences;"
"""DISCARD ALL in parts: it cannot follow others in a message, and would take our prepared statements along."""
AS_IT_WAS: Final = b";set local enable_seqscan to default;set local enable_bitmapscan to default"

UserConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class Named:
    """One of our statements inside a message."""

    def __init__(self, name: str, schema: str) -> None:
        self._text = FILES[name].read_text()
        self._schema = schema
        text, self._names = statement(self._text, schema)
        self.preparing = b"prepare leasemill_%s as %s;" % (name.encode(), text)
        self._call = f"execute leasemill_{name}".encode()

    def called(self, values: Mapping[str, bytes]) -> bytes:
        """By its name, for a session in which it is prepared."""
        if not self._names:
            return self._call
        return self._call + b"(" + b",".join([values[name] for name in self._names]) + b")"

    def written_out(self, values: Mapping[str, bytes]) -> bytes:
        return statement(self._text, self._schema, {name: value.decode() for name, value in values.items()}).text


class Messages:
    """What is said at both ends of a user's transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._look = Named("look", database.statements.schema)
        self._last = Named("commit_last", database.statements.schema)
        self._left_over = Named("left_over", database.statements.schema)
        self._preparing = self._look.preparing + self._last.preparing + self._left_over.preparing

    def begin(
        self, connection: UserConnection, lease: c.LeaseRef, idle_ms: int, *, prepares: bool, is_prepared: bool
    ) -> bytes:
        values = self._values(connection, {"id": lease.job_id, "token": lease.token})
        values["idle_ms"] = b"'%d'" % idle_ms
        look = self._look.called(values) if is_prepared else self._look.written_out(values)
        return BEGIN + (self._preparing if prepares else b"") + BY_INDEX + look + AS_IT_WAS

    def end(self, connection: UserConnection, command: c.Commit, *, is_prepared: bool) -> bytes:
        result = None if command.result is None else command.result.decode()
        values = self._values(connection, {"id": command.job_id, "token": command.token, "result": result})
        last = self._last.called(values) if is_prepared else self._last.written_out(values)
        return BY_INDEX + last + b";commit" + self._reset(is_prepared)

    def roll_back(self, *, is_prepared: bool) -> bytes:
        return b"rollback" + self._reset(is_prepared)

    def _reset(self, is_prepared: bool) -> bytes:
        return AS_BEFORE + (self._left_over.called({}) if is_prepared else self._left_over.written_out({}))

    def _values(self, connection: UserConnection, given: Mapping[str, str | None]) -> dict[str, bytes]:
        quote = Escaping(connection.pgconn).escape_literal
        now = self._database.now()
        values = {name: b"null" if value is None else quote(value.encode()) for name, value in given.items()}
        return {**values, "now": b"null" if now is None else b"%d" % now}


def is_not_held(error: psycopg.Error) -> bool:
    """Whether it is commit_last.sql that failed, as it is meant to."""
    return isinstance(error, psycopg.errors.InvalidTextRepresentation) and NOT_HELD in str(error)


def is_as_before(value: str | None) -> bool:
    """What the last value of a message that ends a transaction says of its session."""
    return value == "f"
