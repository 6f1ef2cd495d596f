"""The schema's versions: forward only, one transaction each run, safe while workers run and to run twice at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg import sql
from psycopg.errors import LockNotAvailable

from leasemill.errors import Refused, Unavailable
from leasemill.store.postgres.wire.statements import check_schema, statement
from leasemill.store.progress import OnProgress, not_shown

ENCODINGS: Final = frozenset({"UTF8", "SQL_ASCII", None})
"""The last: a pooler did not report it."""
FOLDER: Final = Path(__file__).parent / "schema"
LOCK_TIMEOUT = "10s"
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


def lock_name(schema: str) -> str:
    """Of the advisory lock that whoever changes a schema holds."""
    return f"leasemill migrate {schema}"


def applied(connection: psycopg.Connection[Any], schema: str) -> list[int]:
    """The versions a schema has; none if there is no such schema."""
    check_schema(schema)
    row = connection.execute("select to_regclass(%s)", [f"{schema}.migrations"]).fetchone()
    if row is None or row[0] is None:
        return []
    query = sql.SQL("select version from {} order by version").format(sql.Identifier(schema, "migrations"))
    return [version for (version,) in connection.execute(query).fetchall()]


def migrate(connection: psycopg.Connection[Any], schema: str, on_progress: OnProgress = not_shown) -> list[Migration]:
    """Bring a schema up to date; returns what was missing. `on_progress`: in migrations."""
    check_schema(schema)
    try:
        return _migrate(connection, schema, on_progress)
    except LockNotAvailable as error:
        raise Unavailable(
            f"the schema {schema!r} was not changed: a transaction has held a lock on its tables for {LOCK_TIMEOUT}; "
            "repeat when it has ended"
        ) from error


def _migrate(connection: psycopg.Connection[Any], schema: str, on_progress: OnProgress) -> list[Migration]:
    with connection.transaction():
        connection.execute("set transaction isolation level read committed")  # to see what another has just made
        connection.execute("select set_config('lock_timeout', %s, true)", [LOCK_TIMEOUT])
        connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock_name(schema)])
        found = connection.execute("select from pg_namespace where nspname = %s", [schema]).fetchone()
        if found is None:  # IF NOT EXISTS would need the right to make schemas where somebody else has made this one
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(schema)))
        connection.execute(sql.SQL(TABLE).format(sql.Identifier(schema, "migrations")))
        known = applied(connection, schema)
        if is_too_new(known):
            raise Refused(too_new(schema, known))
        latest = max(known, default=0)
        if latest == 0:
            _check_encoding(connection)
        missing = [one for one in migrations() if one.version > latest]
        for number, one in enumerate(missing):
            on_progress(number, len(missing))
            connection.execute(statement(one.text, schema).text, prepare=False)
            connection.execute(
                sql.SQL("insert into {} (version, name) values (%s, %s)").format(sql.Identifier(schema, "migrations")),
                [one.version, one.name],
            )
    return missing


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
