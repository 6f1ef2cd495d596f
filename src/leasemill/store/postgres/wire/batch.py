"""Several statements in one message and one round trip, on a connection of the store's own.

libpq's pipeline mode, used directly: psycopg's own asks the socket several times for each statement, which takes longer
than the statements. Every parameter has a cast in its statement, so the server knows its type. An error leaves out the
statements after it, COMMIT above all, and is raised when all have been answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from struct import Struct
from typing import Any, Final
from weakref import WeakKeyDictionary

from psycopg.adapt import Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8

from leasemill.store.postgres.wire.connections import Connection, Row, answers

Sent = tuple[bytes, Sequence[Any]]
"""A statement and its parameters."""
BEGIN: Final[Sent] = b"begin isolation level read committed", ()
COMMIT: Final[Sent] = b"commit", ()
INT8: Final = Struct(">q")

_numbers = count()


class _Session:
    """What is kept for a connection: the names of the statements it has prepared, and how its rows are read."""

    def __init__(self, connection: Connection) -> None:
        self.names: dict[bytes, bytes] = {}
        self._transformer = Transformer(connection.adapters)  # without the connection, so that it can be forgotten

    def rows(self, result: PGresult) -> list[Row]:
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        self._transformer.set_pgresult(None)  # else it would keep it
        return rows


_sessions: WeakKeyDictionary[Connection, _Session] = WeakKeyDictionary()


def _session(connection: Connection) -> _Session:
    session = _sessions.get(connection)
    if session is None:
        session = _sessions[connection] = _Session(connection)
    return session


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """BEGIN and COMMIT are sent with statements; whatever fails is rolled back."""
    try:
        yield
    except BaseException:
        if not connection.closed:
            connection.rollback()
        raise


def run(connection: Connection, *statements: Sent) -> list[list[Row]]:
    """The rows of each statement."""
    session = _session(connection)
    try:
        return _run(connection, session, statements)
    except InvalidSqlStatementName:
        # psycopg has every statement deallocated after a ROLLBACK. Nothing was carried out yet.
        if connection.info.transaction_status is not TransactionStatus.IDLE:
            if statements[0] is not BEGIN:
                raise
            connection.rollback()
        session.names.clear()
        return _run(connection, session, statements)


def _run(connection: Connection, session: _Session, statements: Sequence[Sent]) -> list[list[Row]]:
    with connection.lock:
        try:
            commands = _post(connection, session.names, statements)
            results = connection.wait(answers(connection.pgconn))
        except BaseException:
            connection.pgconn.finish()  # what was sent, and what of it is still to be answered, is not known
            raise
        connection.pgconn.exit_pipeline_mode()
    return _answered(session, commands, results)


class Message:
    """Statements that were sent on a connection, for who waits for their answers in a way of his own.

    `before_commit` is called with the rows of each statement before COMMIT as soon as they are there, while the server
    writes to its disk. Nothing is committed then, and it may still fail.
    """

    def __init__(
        self,
        connection: Connection,
        statements: Sequence[Sent],
        before_commit: Callable[[list[list[Row]]], None] | None = None,
    ) -> None:
        """Raises psycopg.Error, then the connection is closed."""
        self.connection = connection
        self._session = _session(connection)
        self._before_commit = before_commit
        self._early: list[list[Row]] = []
        try:
            self._commands = _post(connection, self._session.names, statements, flushes=before_commit is not None)
        except BaseException:
            connection.pgconn.finish()
            raise
        self.answers = answers(connection.pgconn, None if before_commit is None else self._arrived)
        """To be driven to its end: what it returns is for `rows`."""

    def _arrived(self, number: int, result: PGresult) -> None:
        last = len(self._commands) - 2
        if number <= last and self._commands[number] is None:
            self._early.append(self._session.rows(result))
        if number == last and result.status == ExecStatus.TUPLES_OK:
            assert self._before_commit is not None
            self._before_commit(self._early)

    def rows(self, results: list[PGresult]) -> list[list[Row]]:
        """Of each statement. Raises the error of the first that failed."""
        self.connection.pgconn.exit_pipeline_mode()
        try:
            return _answered(self._session, self._commands, results, self._early)
        except InvalidSqlStatementName:
            self._session.names.clear()  # as in `run`: the next message prepares them again
            raise


def _post(
    connection: Connection, names: dict[bytes, bytes], statements: Sequence[Sent], *, flushes: bool = False
) -> list[bytes | None]:
    """`flushes`: the server answers those before the last at once, and not only when it is done with all."""
    connection.pgconn.enter_pipeline_mode()
    commands: list[bytes | None] = []
    for number, (text, values) in enumerate(statements, 1):
        if flushes and number == len(statements):
            connection.pgconn.send_flush_request()
        commands += _send(connection, names, text, values)
    connection.pgconn.pipeline_sync()
    return commands


def _answered(
    session: _Session, commands: list[bytes | None], results: list[PGresult], early: Sequence[list[Row]] = ()
) -> list[list[Row]]:
    """`early`: of the first statements, what has been read."""
    failed = next((result for result in results if result.status == ExecStatus.FATAL_ERROR), None)
    if failed is not None:
        for text, result in zip(commands, results, strict=False):
            if text is not None and result.status != ExecStatus.COMMAND_OK:
                del session.names[text]
        raise error_from_result(failed)
    carried_out = [result for text, result in zip(commands, results, strict=False) if text is None]
    return [*early, *(session.rows(result) for result in carried_out[len(early) :])]


def _send(connection: Connection, names: dict[bytes, bytes], text: bytes, values: Sequence[Any]) -> list[bytes | None]:
    """What was sent: the text of a statement to be prepared, None for one to be carried out."""
    pgconn = connection.pgconn
    encoded, formats = [_encoded(value) for value in values], [Format.BINARY] * len(values)
    if connection.prepare_threshold is None:
        pgconn.send_query_params(text, encoded, param_formats=formats, result_format=Format.BINARY)
        return [None]
    name = names.get(text)
    is_known = name is not None
    if name is None:
        name = names[text] = b"leasemill_%d" % next(_numbers)
        pgconn.send_prepare(name, text)
    pgconn.send_query_prepared(name, encoded, param_formats=formats, result_format=Format.BINARY)
    return [None] if is_known else [text, None]


def _encoded(value: Any) -> bytes | None:
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode()
        case bool():
            return b"\1" if value else b"\0"
        case Int8():
            return INT8.pack(value)
        case _:
            raise TypeError(f"{type(value).__name__} is not a parameter of a batch")
