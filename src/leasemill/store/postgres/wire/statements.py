"""The SQL files of a store, each read once.

A file is a format string: `{schema}` is the name of the store's schema, every other field a parameter or one of the
clauses below. Parameters are numbered here (`$1`, `$2`, …), so that the driver has nothing to parse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import Any, Final, NamedTuple

from psycopg import sql

from leasemill.errors import Invalid

FOLDER: Final = Path(__file__).parents[1]
FILES: Final = {file.stem: file for file in FOLDER.rglob("*.sql")}
CLAUSES: Final = {
    "enqueue": ("enqueue", {"if_known": "on conflict on constraint job_id do nothing"}),
    "enqueue_new": ("enqueue", {"if_known": ""}),
}
"""Statements that share a file: its name, and the clauses in which they differ."""
SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)


class Statement(NamedTuple):
    """What a server is sent, and the names of its parameters in their order."""

    text: bytes
    names: tuple[str, ...]

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        return [given[name] for name in self.names]


def check_schema(schema: str) -> None:
    if SCHEMA_NAME.fullmatch(schema) is None:
        raise Invalid(f"schema {schema!r} is not a name: use 1 to 63 of a-z 0-9 _ and begin with a letter or _")


def statement(text: str, schema: str, clauses: Mapping[str, str] | None = None) -> Statement:
    known = {"schema": sql.Identifier(schema).as_string(None), **(clauses or {})}
    fields = dict.fromkeys(field for _, field, _, _ in Formatter().parse(text) if field is not None)
    names = tuple(field for field in fields if field not in known)
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return Statement(text.format_map({**known, **numbers}).encode(), names)


class Statements:
    """`statements["claim"]` is `claim.sql`, in this store's schema."""

    def __init__(self, schema: str) -> None:
        check_schema(schema)
        self.schema = schema
        self._read: dict[str, Statement] = {}

    def __getitem__(self, name: str) -> Statement:
        found = self._read.get(name)
        if found is None:
            file, clauses = CLAUSES.get(name, (name, {}))
            found = self._read[name] = statement(FILES[file].read_text(), self.schema, clauses)
        return found
