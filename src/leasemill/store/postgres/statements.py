"""The SQL files of a store, each read once.

A file is a format string: `{schema}` is the name of the store's schema, `{_name}` the text of the file `_name.sql`, and
every other field a parameter. Parameters are numbered here (`$1`, `$2`, …), so that the driver parses nothing. The
type that a parameter is cast to where it first stands decides how its value is encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, Final, NamedTuple

from psycopg import sql

from leasemill.errors import Invalid
from leasemill.store.postgres.encoding import ENCODERS
from leasemill.store.system import Clock

FOLDER: Final = Path(__file__).parent
FILES: Final = {file.stem: file for file in FOLDER.rglob("*.sql")}
PART: Final = re.compile(r"\{(_[a-z_]+)\}")
CAST: Final = re.compile(r"\{([a-z_]+)\}::([a-z0-9]+(?:\[\])?)")
_HEADER: Final = re.compile(r"\A(?:--.*\n)+")
_NUMBERED: Final = re.compile(r"\$([0-9]+)")
SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)


class Statement(NamedTuple):
    """The text that a server is sent, and its parameters in their order."""

    text: bytes
    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    def encoded(self, given: Mapping[str, Any]) -> list[bytes | None]:
        """The parameters in binary form."""
        return [
            None if (value := given[name]) is None else ENCODERS[kind](value)
            for name, kind in zip(self.names, self.types, strict=True)
        ]

    # For drivers that are not psycopg 3

    def plain(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters by name, as any driver takes them."""
        return {
            name: [one.decode() if isinstance(one, bytes) else one for one in given[name]]
            if kind.endswith("[]") and given[name] is not None
            else given[name]
            for name, kind in zip(self.names, self.types, strict=True)
        }

    def dollar(self) -> str:
        """With `$1`, as asyncpg takes it."""
        return self.text.decode()

    def pyformat(self) -> str:
        """With `%(name)s`, as DB-API drivers take it."""
        return _pyformat(self)


OF_TRANSACTIONS: Final = {
    "begin": Statement(b"begin isolation level read committed"),
    "commit": Statement(b"commit"),
    "rollback": Statement(b"rollback"),
}


class Execute(NamedTuple):
    """A statement, one of ours by its name, and its parameters by theirs."""

    statement: str | Statement
    given: Mapping[str, Any]


@cache
def _pyformat(statement: Statement) -> str:
    text = statement.dollar().replace("%", "%%")
    return _NUMBERED.sub(lambda found: f"%({statement.names[int(found[1]) - 1]})s", text)


def check_schema(schema: str) -> None:
    if SCHEMA_NAME.fullmatch(schema) is None:
        raise Invalid(f"schema {schema!r} is not a name: use 1 to 63 of a-z 0-9 _ and begin with a letter or _")


def statement(text: str, schema: str) -> Statement:
    text = _with_parts(text)
    known = {"schema": sql.Identifier(schema).as_string(None)}
    fields = dict.fromkeys(field for _, field, _, _ in Formatter().parse(text) if field is not None)
    names = tuple(field for field in fields if field not in known)
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    types: dict[str, str] = {}
    for name, kind in CAST.findall(text):
        types.setdefault(name, kind)
    return Statement(text.format_map({**known, **numbers}).encode(), names, tuple(types[name] for name in names))


def _with_parts(text: str) -> str:
    """With the text of the files that it includes, without the comments that they begin with."""
    return PART.sub(lambda found: _with_parts(_HEADER.sub("", FILES[found[1]].read_text()).rstrip("\n")), text)


class Statements:
    """The statements of one store, each read once: `claim` is `claim.sql`, in this store's schema."""

    def __init__(self, schema: str, clock: Clock | None = None) -> None:
        check_schema(schema)
        self.schema = schema
        self._clock = clock
        self._read = dict(OF_TRANSACTIONS)

    def __getitem__(self, name: str) -> Statement:
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = statement(FILES[name].read_text(), self.schema)
        return found

    def now(self) -> int | None:
        """The time that statements are given; None: they take the server's."""
        return None if self._clock is None else self._clock.now()

    def complete(self, call: Execute) -> tuple[Statement, dict[str, Any]]:
        """A statement, and all its parameters by name."""
        found = call.statement if isinstance(call.statement, Statement) else self[call.statement]
        return found, {"now": self.now(), **call.given}

    def sent(self, call: Execute) -> tuple[bytes, list[bytes | None]]:
        """The text of a statement, and its parameters in binary form."""
        found, given = self.complete(call)
        return found.text, found.encoded(given)
