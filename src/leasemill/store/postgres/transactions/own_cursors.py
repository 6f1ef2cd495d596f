"""How our statements are sent on users' psycopg connections.

Whatever was set on a connection (row factory, cursor factory, adapters, search path) must not matter: the cursors are
our own, rows are plain tuples in binary form, every name in a statement has its schema. Nothing here begins or ends a
transaction of its own accord.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
from psycopg import adapters, pq
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8
from psycopg.types.string import StrBinaryDumper

from leasemill.store.postgres.encoding import ENCODERS
from leasemill.store.postgres.statements import Statement
from leasemill.store.postgres.steps import Row


class Int8Array(bytes):
    """`int8[]`, encoded."""


class TextArray(bytes):
    """`text[]`, encoded."""


class _Encoded(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


class _Int8ArrayDumper(_Encoded):
    oid = adapters.types["int8"].array_oid


class _TextArrayDumper(_Encoded):
    oid = adapters.types["text"].array_oid


OURS: Final = AdaptersMap(adapters)
"""psycopg's own adapters and ours, whatever a connection's are."""
OURS.register_dumper(str, StrBinaryDumper)
OURS.register_dumper(Int8Array, _Int8ArrayDumper)
OURS.register_dumper(TextArray, _TextArrayDumper)

TYPED: Final[dict[str, Callable[[Any], Any]]] = {
    "int8": Int8,
    "int8[]": lambda value: Int8Array(ENCODERS["int8[]"](value)),
    "text[]": lambda value: TextArray(ENCODERS["text[]"](value)),
}
"""Values of these types would else be sent as psycopg guesses from their content."""


class OwnCursor(psycopg.RawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return OURS


class OwnAsyncCursor(psycopg.AsyncRawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return OURS


def rows(connection: psycopg.Connection[Any], statement: Statement, given: Mapping[str, Any]) -> list[Row]:
    """Send a statement that returns rows; in a pipeline of the user's too, which is then waited for."""
    with OwnCursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(statement.text, _values(statement, given), binary=True)
        return cursor.fetchall()


async def arows(connection: psycopg.AsyncConnection[Any], statement: Statement, given: Mapping[str, Any]) -> list[Row]:
    """`rows` in async code."""
    async with OwnAsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(statement.text, _values(statement, given), binary=True)
        return await cursor.fetchall()


def _values(statement: Statement, given: Mapping[str, Any]) -> list[Any]:
    values = [(kind, given[name]) for name, kind in zip(statement.names, statement.types, strict=True)]
    return [TYPED[kind](value) if kind in TYPED and value is not None else value for kind, value in values]
