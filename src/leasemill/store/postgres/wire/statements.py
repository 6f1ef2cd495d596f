"""The SQL files of a store, read once: one for each verb and each reading, with the schema's name put in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from leasemill.errors import Invalid

FOLDERS: Final = ("verbs", "exact", "sql")
FILES: Final = {file.stem: file for folder in FOLDERS for file in (Path(__file__).parents[1] / folder).glob("*.sql")}
NEEDLESS: Final = re.compile(r" ?([(),=<>+]) ?")
WITHOUT: Final = {
    "enqueue_new": ("enqueue", "on conflict on constraint job_id do nothing"),
    "admit_all": ("admit", "skip locked"),
}
"""Statements that are another one's file without a clause."""
SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)


def check_schema(schema: str) -> None:
    if SCHEMA_NAME.fullmatch(schema) is None:
        raise Invalid(f"schema {schema!r} is not a name: use 1 to 63 of a-z 0-9 _ and begin with a letter or _")


def in_schema(text: str, schema: str) -> str:
    """The files say `leasemill.`; a store of another name has its own put there."""
    return text if schema == "leasemill" else re.sub(r"\bleasemill\.", f"{schema}.", text)


def tight(text: str) -> str:
    """Without the spaces that SQL does not need; what is quoted stays as it is."""
    parts = " ".join(text.split()).split("'")
    return "'".join(part if number % 2 else NEEDLESS.sub(r"\1", part) for number, part in enumerate(parts))


class Statements:
    """`statements["claim"]` is `verbs/claim.sql`, short enough for psycopg to remember."""

    def __init__(self, schema: str) -> None:
        check_schema(schema)
        self.schema = schema
        self._read: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> bytes:
        statement = self._read.get(name)
        if statement is None:
            file, clause = WITHOUT.get(name, (name, ""))
            text = re.sub(r"--[^\n]*", "", FILES[file].read_text()).replace(clause, "")
            statement = self._read[name] = in_schema(tight(text), self.schema).encode()
        return statement
