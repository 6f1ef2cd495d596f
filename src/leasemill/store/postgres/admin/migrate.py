"""The schema's versions: forward only, one transaction each, safe while workers run and to run twice at once.

A version is applied whole or not at all, and what was applied stays. Processes of the version before work on every
state in between; those of this one open the schema when its last version is there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg import sql

from leasemill.errors import Refused
from leasemill.store.operations import OnProgress, not_shown
from leasemill.store.postgres.admin.locks import PATIENCE_S, OnWait, keep_trying, lock_name
from leasemill.store.postgres.statements import check_schema, statement

LOGGER: Final = logging.getLogger("leasemill.postgres")
ENCODINGS: Final = frozenset({"UTF8", "SQL_ASCII", None})
"""The last: a pooler did not report it."""
FOLDER: Final = Path(__file__).parent / "schema"
TABLE: Final = (
    "create table if not exists {} "
    "(version int4 primary key, name text not null, applied_at timestamptz not null default now())"
)


class Migration(Struct, frozen=True):
    version: int
    name: str
    text: str


def migrations() -> list[Migration]:
    """All there are, in order; the number in the file's name is the version."""
    found = sorted(FOLDER.glob("[0-9]*.sql"))
    return [Migration(int(path.stem.partition("_")[0]), path.stem, path.read_text()) for path in found]


def applied(connection: psycopg.Connection[Any], schema: str) -> list[int]:
    """The versions a schema has; none if there is no such schema."""
    check_schema(schema)
    row = connection.execute("select to_regclass(%s)", [f"{schema}.migrations"]).fetchone()
    if row is None or row[0] is None:
        return []
    query = sql.SQL("select version from {} order by version").format(sql.Identifier(schema, "migrations"))
    return [version for (version,) in connection.execute(query).fetchall()]


def migrate(
    connection: psycopg.Connection[Any],
    schema: str,
    on_progress: OnProgress = not_shown,
    *,
    on_wait: OnWait = LOGGER.warning,
    patience_s: float = PATIENCE_S,
) -> list[Migration]:
    """Bring a schema up to date; returns what was applied. `on_progress`: in migrations. `patience_s`: how long each of
    them may wait for its locks."""
    check_schema(schema)
    done: list[Migration] = []
    under_way = f"the schema {schema!r}"

    def apply_next(lock_timeout_ms: int) -> Migration | None:
        nonlocal under_way
        with connection.transaction():
            missing = _missing(connection, schema, lock_timeout_ms)
            if not missing:
                return None
            on_progress(len(done), len(done) + len(missing))
            under_way = f"migration {missing[0].name}"
            _apply(connection, schema, missing[0])
            return missing[0]

    def query(text: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return connection.execute(text.encode(), values).fetchall()

    while (one := keep_trying(apply_next, query, schema, lambda: under_way, on_wait, patience_s)) is not None:
        done.append(one)
    return done


def _missing(connection: psycopg.Connection[Any], schema: str, lock_timeout_ms: int) -> list[Migration]:
    """Return what a schema lacks; locks it until the end of the transaction against others that migrate."""
    connection.execute("set transaction isolation level read committed")  # to see what another has just made
    connection.execute("select set_config('lock_timeout', %s, true)", [f"{lock_timeout_ms}ms"])
    connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock_name(schema)])
    known = applied(connection, schema)
    if is_too_new(known):
        raise Refused(too_new(schema, known))
    latest = max(known, default=0)
    return [one for one in migrations() if one.version > latest]


def _apply(connection: psycopg.Connection[Any], schema: str, one: Migration) -> None:
    if one.version == 1:
        _check_encoding(connection)
        found = connection.execute("select from pg_namespace where nspname = %s", [schema]).fetchone()
        if found is None:  # IF NOT EXISTS would need the right to make schemas where somebody else has made this one
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        connection.execute(sql.SQL(TABLE).format(sql.Identifier(schema, "migrations")))
    connection.execute(statement(one.text, schema).text, prepare=False)
    connection.execute(
        sql.SQL("insert into {} (version, name) values (%s, %s)").format(sql.Identifier(schema, "migrations")),
        [one.version, one.name],
    )


def _check_encoding(connection: psycopg.Connection[Any]) -> None:
    """I4: names, errors and payloads have any printable character."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ENCODINGS:
        raise Refused(
            f"the database {connection.info.dbname!r} has the encoding {encoding}, which cannot store every text: "
            "create one with encoding UTF8, and name it in the URL"
        )


def is_too_new(known: list[int]) -> bool:
    """A newer version has changed the tables in a way that this one must not work with: it has removed our version."""
    wanted = migrations()[-1].version
    return wanted not in known and max(known, default=0) > wanted


def too_new(schema: str, known: list[int]) -> str:
    return (
        f"the schema {schema!r} is at version {max(known)}, and this Leasemill knows versions up to "
        f"{migrations()[-1].version}: a newer Leasemill has changed its tables; install that version here too"
    )


def require(connection: psycopg.Connection[Any], schema: str, *, auto_migrate: bool) -> None:
    """Refuses a schema that this version cannot work with, or brings it up to date."""
    wanted = migrations()[-1].version
    known = applied(connection, schema)
    if auto_migrate and wanted not in known:
        migrate(connection, schema)
    elif not known:
        raise Refused(
            f"the schema {schema!r} has no Leasemill tables: "
            "run leasemill db migrate, with the same URL, or in Django manage.py migrate"
        )
    elif is_too_new(known):
        raise Refused(too_new(schema, known))
    elif wanted not in known:
        raise Refused(
            f"the schema {schema!r} is at version {known[-1]}, this Leasemill needs {wanted}: "
            "run leasemill db migrate, with the same URL, or in Django manage.py migrate"
        )
