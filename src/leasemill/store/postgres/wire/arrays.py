"""Batches as PostgreSQL's binary arrays: one parameter for a column, always of one type, encoded in one go.

Left to itself psycopg chooses the narrowest integer type for each list, so that one statement would be prepared many
times over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Final

from psycopg import pq
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.types.numeric import Int8

INT8_OID: Final = 20
INT8_ARRAY_OID: Final = 1016
TEXT_OID: Final = 25
TEXT_ARRAY_OID: Final = 1009
HEADER: Final = Struct(">iiIii")
LENGTH: Final = Struct(">i")
INT8: Final = Struct(">iq")
NULL: Final = LENGTH.pack(-1)


class Int8Array(bytes):
    """`int8[]`, encoded."""


class TextArray(bytes):
    """`text[]`, encoded."""


def int8s(values: Sequence[int | None]) -> Int8Array:
    pack = INT8.pack
    items = [NULL if value is None else pack(8, value) for value in values]
    return Int8Array(HEADER.pack(1, 1, INT8_OID, len(items), 1) + b"".join(items))


def texts(values: Iterable[str | None]) -> TextArray:
    return encoded([None if value is None else value.encode() for value in values])


def encoded(values: Sequence[bytes | None]) -> TextArray:
    """`text[]` of what is UTF-8 already."""
    items: list[bytes] = []
    add, length = items.append, LENGTH.pack
    for value in values:
        if value is None:
            add(NULL)
        else:
            add(length(len(value)))
            add(value)
    return TextArray(HEADER.pack(1, 1, TEXT_OID, len(values), 1) + b"".join(items))


def plain_value(value: Any) -> Any:
    """A parameter as any driver takes it: an encoded array is a list again."""
    if isinstance(value, Int8):
        return int(value)
    if not isinstance(value, Int8Array | TextArray):
        return value
    items: list[Any] = []
    at = HEADER.size
    while at < len(value):
        (length,) = LENGTH.unpack_from(value, at)
        at += LENGTH.size
        if length < 0:
            items.append(None)
            continue
        item = value[at : at + length]
        items.append(int.from_bytes(item, "big", signed=True) if isinstance(value, Int8Array) else item.decode())
        at += length
    return items


def int8(value: int | None) -> Int8 | None:
    """One `int8`, whatever its size."""
    return None if value is None else Int8(value)


class _Encoded(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


class _Int8ArrayDumper(_Encoded):
    oid = INT8_ARRAY_OID


class _TextArrayDumper(_Encoded):
    oid = TEXT_ARRAY_OID


def register(adapters: AdaptersMap) -> None:
    adapters.register_dumper(Int8Array, _Int8ArrayDumper)
    adapters.register_dumper(TextArray, _TextArrayDumper)
