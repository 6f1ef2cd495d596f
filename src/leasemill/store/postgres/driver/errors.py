"""The meaning of PostgreSQL's errors: did the call happen, may it be repeated, and what is to be done.

An error that is not known here is Broken: it should not occur. libpq hands on no code of a connection that was refused,
so those are known by their text.
"""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.pq import PipelineStatus

from leasemill.errors import Broken, LeasemillError, Refused, Unavailable

GONE: Final = frozenset(
    {
        *("57P01", "57P02", "57P03", "57P04"),  # stopped, crashed, not ready, its database dropped
        *("57P05", "25P03", "25P04"),  # idle for too long, in a transaction or not; a transaction that took too long
        errors.TooManyConnections.sqlstate,
    }
)
"""Errors that end the session, by their codes: not every psycopg has a class for each."""
PASSING: Final = frozenset({"08", "53", "57", "58"})
"""Classes of errors that are about the server, not about the statement: the connection, what it has run out of (a full
disk, memory), somebody who intervened, a file that could not be read or written. psycopg has no base class for them."""
UNREADY: Final = (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedFunction, errors.UndefinedColumn)
UNREADY_CODES: Final = frozenset(error.sqlstate for error in UNREADY)
NO_RIGHTS: Final = errors.InsufficientPrivilege.sqlstate

ACCOUNT: Final = "check the user and the password in the URL, in PGPASSWORD or in ~/.pgpass"
NO_ENTRY: Final = (
    (re.compile(r"password authentication failed|no password supplied"), ACCOUNT),
    (re.compile(r'role ".*" does not exist'), "create the role, or name another user in the URL"),
    (re.compile(r'database ".*" does not exist'), "create the database, or name another in the URL"),
    (re.compile(r"permission denied for database"), "grant connect on the database to this role"),
    (re.compile(r"no pg_hba.conf entry|pg_hba.conf rejects"), "allow this user and host in the server's pg_hba.conf"),
)
FULL: Final = re.compile(r"too many clients|too many connections|connection slots are reserved")


def meaning(error: psycopg.Error, schema: str) -> LeasemillError:
    """Return what an error of one of our statements means to the caller."""
    line = first_line(error)
    match error:
        case errors.InsufficientPrivilege():
            return no_rights(line, schema)
        case _ if isinstance(error, UNREADY):
            return Refused(
                f"the schema {schema!r} has no Leasemill tables, or older ones ({line}): run leasemill db migrate, "
                "with the same URL"
            )
        case errors.UntranslatableCharacter() | errors.CharacterNotInRepertoire():
            return Refused(f"this database cannot store every text ({line}): use one whose encoding is UTF8")
        case errors.ReadOnlySqlTransaction():
            return Unavailable(f"this server is read-only ({line}): name the primary in the URL, or repeat the call")
        case _ if (error.sqlstate or "")[:2] in PASSING:
            return Unavailable(f"PostgreSQL did not complete the call: {line}; repeat the call")
        case errors.LockNotAvailable() | errors.DeadlockDetected() | errors.SerializationFailure():
            return Unavailable(f"another transaction was in the way: {line}; repeat the call")
        case _:
            return Broken(f"unexpected error of PostgreSQL: {line}")


def no_rights(line: str, schema: str) -> Refused:
    return Refused(
        f"this role may not do that ({line}): grant it what docs/postgres.md lists under Rights, "
        f"for the schema {schema!r}"
    )


def is_lost(error: psycopg.Error, connection: psycopg.BaseConnection[Any]) -> bool:
    """Return True if no further reply will arrive on the connection; the last message may have happened.

    A session that ends under a pipeline leaves it open: its connection is not known to be closed yet.
    """
    is_stuck = connection.pgconn.pipeline_status != PipelineStatus.OFF
    return connection.closed or is_stuck or error.sqlstate in GONE


def not_reached(error: psycopg.Error) -> Unavailable:
    """There is no connection, or it was lost."""
    if FULL.search(str(error)) is not None or isinstance(error, errors.TooManyConnections):
        return Unavailable(
            f"PostgreSQL has no connection left ({first_line(error)}): raise max_connections, lower pool_size and "
            "commit_pool_size in the URL, or repeat the call"
        )
    return Unavailable(
        f"PostgreSQL cannot be reached: {first_line(error)}; check that it runs, and the host and port in the URL, "
        "then repeat the call"
    )


def not_let_in(error: psycopg.Error) -> Refused | None:
    """The server answered, and waiting will not change what it said: what to do. None: it may be different later."""
    for text, remedy in NO_ENTRY:
        if text.search(str(error)) is not None:
            return Refused(f"PostgreSQL refused the connection ({first_line(error)}): {remedy}")
    return None


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
