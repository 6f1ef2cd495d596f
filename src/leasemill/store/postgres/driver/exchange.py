"""One message to the server: statements that are sent together, and the results of all of them.

Uses libpq's pipeline mode through `psycopg.pq`, psycopg's documented wrapper of libpq: cursors in a `pipeline()` block
poll the socket several times for each statement, which takes longer than the statements. Every parameter has a cast in
its statement, so the server knows its type. A statement that fails leaves out those after it, COMMIT above all; its
error is raised when every statement has its result.

Nothing here waits: `thread` and `loop` do, each in its own way. What must never happen here: a connection that goes on
after a message of which it is not known how much was sent, or how much of the answer is still to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeAlias

import psycopg
from psycopg import errors
from psycopg.pq import DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGresult

from leasemill.store.postgres.encoding import decoded
from leasemill.store.postgres.steps import Row

Sent: TypeAlias = tuple[bytes, Sequence[bytes | None]]
"""The text of a statement, and its parameters in binary form."""

_numbers = count()


class StoreConnection(psycopg.Connection[Row]):
    """A connection of the store's own, with the names of the statements that were prepared on it.

    Only the store sends anything on it, and always by a `MessageExchange`: psycopg's cursors would prepare statements,
    and deallocate ours, under rules of their own.
    """

    is_preparing = True
    """True if prepared statements last on it. Behind a pooler they may not."""
    silent_for_s = float("inf")
    """How long the server may take to answer before the connection is given up."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.names: dict[bytes, bytes] = {}
        """The names of prepared statements, by their texts."""


class MessageExchange:
    """One message on one connection, and as much of its answer as has arrived."""

    def __init__(self, connection: StoreConnection, statements: Sequence[Sent]) -> None:
        """Raises psycopg.Error, and then the connection is closed."""
        self.connection = connection
        self._pgconn = connection.pgconn
        self._commands: list[bytes | None] = []
        """In the order of the results: the text of a statement to be prepared, None for one to be executed."""
        self._results: list[PGresult] = []
        self._is_sent = False
        try:
            self._pgconn.enter_pipeline_mode()
            for text, values in statements:
                self._send(text, values)
            self._pgconn.pipeline_sync()
        except BaseException:
            self._pgconn.finish()  # some of the message may be on its way
            raise

    def _send(self, text: bytes, values: Sequence[bytes | None]) -> None:
        pgconn, names = self._pgconn, self.connection.names
        formats = [Format.BINARY] * len(values)
        if not self.connection.is_preparing:
            pgconn.send_query_params(text, values, param_formats=formats, result_format=Format.BINARY)
            self._commands.append(None)
            return
        name = names.get(text)
        if name is None:
            name = names[text] = b"leasemill_%d" % next(_numbers)
            pgconn.send_prepare(name, text)
            self._commands.append(text)
        pgconn.send_query_prepared(name, values, param_formats=formats, result_format=Format.BINARY)
        self._commands.append(None)

    def flush(self) -> bool:
        """Write what the socket takes; whether anything is left to be written. What has arrived is read, for a server
        that cannot go on answering reads nothing more."""
        self._is_sent = not self._pgconn.flush()
        return not self._is_sent

    def read(self) -> bool:
        """Take in what has arrived; whether the answer is complete. Called when the socket is readable."""
        pgconn, results = self._pgconn, self._results
        pgconn.consume_input()
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                continue  # it separates the results of two commands
            results.append(result)
            if result.status == ExecStatus.PIPELINE_SYNC:
                pgconn.exit_pipeline_mode()
                return True
        return False

    def rows(self) -> list[list[Row]]:
        """The rows of each statement; raises the error of the first that failed. The answer is complete."""
        results = self._results
        failed = next((one for one in results if one.status == ExecStatus.FATAL_ERROR), None)
        pairs = list(zip(self._commands, results, strict=False))
        if failed is not None:
            for text, result in pairs:
                if text is not None and result.status != ExecStatus.COMMAND_OK:
                    self.connection.names.pop(text, None)  # it was not prepared
            raise error_of(failed)
        return [rows_of(result) for text, result in pairs if text is None]


def error_of(result: PGresult) -> psycopg.Error:
    """The exception of the class that psycopg has for its SQLSTATE."""
    field = result.error_field(DiagnosticField.SQLSTATE)
    code = None if field is None else field.decode()
    kind: type[psycopg.Error] = psycopg.DatabaseError
    if code is not None:
        with suppress(KeyError):  # a code of our own functions, or of a newer server
            kind = errors.lookup(code)
    severity = (result.error_field(DiagnosticField.SEVERITY) or b"").decode(errors="replace")
    text = result.error_message.decode(errors="replace").removeprefix(f"{severity}:")
    error = kind(text.strip())
    error.sqlstate = code
    return error


def rows_of(result: PGresult) -> list[Row]:
    """The rows of a result, which is read column by column."""
    numbers = range(result.ntuples)
    if not numbers or result.status != ExecStatus.TUPLES_OK:
        return []
    get, columns = result.get_value, list[Sequence[Any]]()
    for index in range(result.nfields):
        try:
            columns.append(decoded(result.ftype(index), [get(number, index) for number in numbers]))
        except KeyError:
            raise TypeError(f"column {result.fname(index)!r} has a type that no statement returns: cast it") from None
    return list(zip(*columns, strict=True)) if columns else [()] * len(numbers)
