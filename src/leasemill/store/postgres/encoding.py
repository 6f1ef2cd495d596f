"""Values between Python and PostgreSQL's binary form, by the types that statements name.

Every parameter has a cast in its statement (`{nos}::int8[]`), and that decides how its value is encoded. So a
statement is prepared once: left to itself psycopg chooses the narrowest integer type for each list. A type that is not
here is not used; a statement casts what it takes and what it returns.

Claims return thousands of rows of some thirty columns, so columns and arrays are converted as a whole: a call of a
Python function for each value would take longer than the server does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from struct import Struct, unpack
from typing import Any, Final

INT8: Final = Struct(">q")
ITEM: Final = Struct(">iq")
"""The length of an int8 in an array, and the int8."""
HEADER: Final = Struct(">iiIii")
"""An array begins with: dimensions, whether there are NULLs, type of its items, how many, and index of the first."""
HAS_NULLS: Final = 7
"""The index of the byte of that header which says so."""
LENGTH: Final = Struct(">i")
NULL: Final = LENGTH.pack(-1)
INT8_OID: Final = 20
TEXT_OID: Final = 25


# To the server -------------------------------------------------------------------------------------------------------


def _text(value: str | bytes) -> bytes:
    """`bytes` are UTF-8 already."""
    return value if isinstance(value, bytes) else value.encode()


def _texts(values: Iterable[str | bytes | None]) -> bytes:
    items: list[bytes] = []
    for value in values:
        if value is None:
            items.append(NULL)
            continue
        text = value.encode() if isinstance(value, str) else value
        items.append(LENGTH.pack(len(text)) + text)
    return HEADER.pack(1, 1, TEXT_OID, len(items), 1) + b"".join(items)


def _int8s(values: Iterable[int | None]) -> bytes:
    items = [NULL if value is None else ITEM.pack(8, value) for value in values]
    return HEADER.pack(1, 1, INT8_OID, len(items), 1) + b"".join(items)


ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "bool": lambda value: b"\1" if value else b"\0",
    "bytea": bytes,
    "int8": INT8.pack,
    "int8[]": _int8s,
    "json": _text,
    "text": _text,
    "text[]": _texts,
}
"""By the name of a type, how a value is written that is not None."""


# From the server -----------------------------------------------------------------------------------------------------

Column = Sequence[bytes]
"""The values of a column in the rows in which it is not NULL."""


def _ints(code: str) -> Callable[[Column], Sequence[int]]:
    return lambda values: unpack(f">{len(values)}{code}", b"".join(values))


def _texts_of(values: Column) -> list[str]:
    return list(map(bytes.decode, values))


def _arrays(decode: Callable[[Column], Sequence[Any]]) -> Callable[[Column], list[list[Any]]]:
    def decoded(value: bytes) -> list[Any]:
        items: list[Any] = []
        at = HEADER.size  # an empty array has no dimension, and ends before
        while at < len(value):
            (length,) = LENGTH.unpack_from(value, at)
            at += LENGTH.size
            if length < 0:
                items.append(None)
                continue
            items += decode([value[at : at + length]])
            at += length
        return items

    return lambda values: [decoded(value) for value in values]


def _int8_arrays(values: Column) -> list[Sequence[Any]]:
    """Arrays of the same length without NULLs are read together."""
    size = len(values[0])
    count, rest = divmod(size - HEADER.size, ITEM.size)
    if count <= 0 or rest or any(len(value) != size or value[HAS_NULLS] for value in values):
        return [tuple(value) for value in _arrays(_ints("q"))(values)]
    return list(Struct(f">{HEADER.size}x{count * '4xq'}").iter_unpack(b"".join(values)))


DECODERS: Final[dict[int, Callable[[Column], Sequence[Any]]]] = {
    16: lambda values: [value == b"\1" for value in values],  # bool
    17: list,  # bytea
    20: _ints("q"),  # int8
    21: _ints("h"),  # int2
    23: _ints("i"),  # int4
    25: _texts_of,  # text
    1005: _arrays(_ints("h")),  # int2[]
    1007: _arrays(_ints("i")),  # int4[]
    1009: _arrays(_texts_of),  # text[]
    1016: _int8_arrays,
    2278: lambda values: [None] * len(values),  # void
}
"""By the OID of a type, how a column is read."""


def decoded(oid: int, values: Sequence[bytes | None]) -> Sequence[Any]:
    """A column, in which NULLs are None. Raises KeyError if no statement returns this type."""
    nulls = values.count(None)
    if nulls == len(values):
        return values
    found = DECODERS[oid]([value for value in values if value is not None] if nulls else values)  # type: ignore[arg-type]
    if not nulls:
        return found
    following = iter(found)
    return [None if value is None else next(following) for value in values]
