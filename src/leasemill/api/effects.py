"""Effects outside the commit: `ctx.once` for another database than the store's, and headers for calls over HTTP.

`Once` puts a guard row, keyed by job and effect, into the same transaction as the user's writes. A second run finds the
row, whether it is a retry or one that lost its lease and does not know it. What must never happen: a guard that is
committed without the effect, an effect that is committed without its guard, or a second run's writes that stay.

Everything sent to the database is plain SQL (`savepoint`, `insert`, `create table`), and a unique key decides.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from hashlib import blake2b
from types import ModuleType, TracebackType
from typing import Any, Final, Protocol
from urllib.parse import quote

from leasemill.api.policy import is_on_event_loop
from leasemill.errors import Invalid

TABLE: Final = "leasemill_once"
ONCE_TABLE_SQL: Final = f"""create table if not exists {TABLE} (
  job varchar(200) not null,
  effect varchar(100) not null,
  fence bigint not null,
  applied_at timestamp not null default current_timestamp,
  primary key (job, effect)
)"""
"""The guard's table. It is created if it is missing; create it yourself where handlers may not."""

CREATE_TRIES: Final = 3

_SAVEPOINT: Final = "leasemill_once_guard"
_NAMES: Final = ("job", "effect", "fence")
_PLACES: Final[dict[str, Callable[[int, str], str]]] = {
    "qmark": lambda _number, _name: "?",
    "numeric": lambda number, _name: f":{number}",
    "named": lambda _number, name: f":{name}",
    "format": lambda _number, _name: "%s",
    "pyformat": lambda _number, name: f"%({name})s",
}
_BY_NAME: Final = frozenset({"named", "pyformat"})

IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
FENCE_HEADER: Final = "Leasemill-Fence"
KEY_LENGTH: Final = 255
"""The longest key that services accept."""
_VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


class DriverConnection(Protocol):
    """The part of a DB-API (PEP 249) connection that is used."""

    def cursor(self) -> Any: ...
    def commit(self) -> Any: ...
    def rollback(self) -> Any: ...


class Once:
    """`with ctx.once(connection) as first`: the transaction of one effect, applied by one run of the job.

    `first` is True if no run has applied the effect yet. Leaving the block then commits the transaction, guard and
    effect together; otherwise, and after an error, it is rolled back.
    """

    __slots__ = ("_applied", "_check_held", "_connection", "_effect", "_fence", "_is_first", "_job_id", "_module")

    def __init__(
        self,
        connection: DriverConnection,
        job_id: str,
        effect: str,
        fence: int,
        check_held: Callable[[], None],
        applied: set[str],
    ) -> None:
        self._connection = connection
        self._job_id = job_id
        self._effect = effect
        self._fence = fence
        self._check_held = check_held
        self._applied = applied
        self._is_first = False
        self._module = _checked_module(connection)

    def __enter__(self) -> bool:
        if is_on_event_loop():
            raise Invalid(
                "ctx.once waits for a database and this handler runs on the event loop: write the handler as `def`, or "
                "put the block into a function and call it with asyncio.to_thread"
            )
        if self._effect in self._applied:
            raise Invalid(
                f"job {self._job_id!r} has applied {self._effect!r} in this run already: put all of it into one block, "
                "or name the second: ctx.once(connection, 'name')"
            )
        self._check_held()
        try:
            self._begin()
            self._is_first = self._put_guard()
        except BaseException:
            self._undo_quietly()
            raise
        return self._is_first

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._undo_quietly()
            return
        if not self._is_first:
            self._connection.rollback()  # also what a run wrote without checking whether it is the first
            return
        try:
            self._check_held()
            self._check_whole()
            self._connection.commit()
        except BaseException:
            self._undo_quietly()
            raise
        self._applied.add(self._effect)

    def _begin(self) -> None:
        """sqlite3 begins late or, with isolation_level None, not at all; others begin by themselves."""
        if self._module.__name__ == "sqlite3" and not getattr(self._connection, "in_transaction", False):
            self._execute("begin immediate")

    def _put_guard(self) -> bool:
        self._execute(f"savepoint {_SAVEPOINT}")
        for tries_left in range(CREATE_TRIES, -1, -1):
            try:
                self._insert()
            except self._module.IntegrityError:
                self._back_to_savepoint()
                return False
            except (self._module.OperationalError, self._module.ProgrammingError):
                if not tries_left:
                    raise
                self._back_to_savepoint()  # there is no table, or this session does not see the other run's yet
                self._create_table()
            else:
                break
        return True

    def _create_table(self) -> None:
        try:
            self._execute(ONCE_TABLE_SQL)
        except self._module.Error:
            self._back_to_savepoint()  # another run created it just now; if it is another error, the insert raises it

    def _insert(self) -> None:
        style = self._module.paramstyle
        places = ", ".join(_PLACES[style](number, name) for number, name in enumerate(_NAMES, 1))
        values = (self._job_id, self._effect, self._fence)
        given = dict(zip(_NAMES, values, strict=True)) if style in _BY_NAME else values
        self._execute(f"insert into {TABLE} ({', '.join(_NAMES)}) values ({places})", given)

    def _check_whole(self) -> None:
        """The savepoint is gone if the block ended the transaction, and cannot be released if a statement failed."""
        try:
            self._execute(f"release savepoint {_SAVEPOINT}")
        except self._module.Error as error:
            try:
                self._connection.rollback()
            except self._module.Error:
                raise error from None  # the connection is lost, and with it the transaction
            raise Invalid(
                f"the transaction of ctx.once did not last until the end of its block ({_first_line(error)}): do not "
                "commit, roll back or use executescript inside it, and do not catch a statement's error there"
            ) from error

    def _back_to_savepoint(self) -> None:
        self._execute(f"rollback to savepoint {_SAVEPOINT}")

    def _execute(self, statement: str, values: Any = None) -> None:
        with closing(self._connection.cursor()) as cursor:
            if values is None:
                cursor.execute(statement)
            else:
                cursor.execute(statement, values)

    def _undo_quietly(self) -> None:
        with suppress(self._module.Error):  # the first error matters more; a lost connection rolls back by itself
            self._connection.rollback()


def http_headers(job_id: str, effect: str | None, fence: int) -> dict[str, str]:
    """The headers by which a service recognises a repeat, and a run older than one it has seen."""
    key = quote(job_id if effect is None else f"{job_id}:{effect}", safe=_VISIBLE)
    if len(key) > KEY_LENGTH:
        key = blake2b(key.encode(), digest_size=32).hexdigest()
    return {IDEMPOTENCY_HEADER: key, FENCE_HEADER: str(fence)}


def _checked_module(connection: DriverConnection) -> ModuleType:
    """The driver of a connection that can be used: one in whose transactions guard and effect are one."""
    module = next(_drivers(connection), None)
    if module is None:
        raise Invalid(
            f"{type(connection).__name__} is not a connection of a DB-API driver (sqlite3, psycopg, …): "
            "pass the driver's own connection to ctx.once"
        )
    if inspect.iscoroutinefunction(connection.commit):
        raise Invalid("ctx.once takes a sync connection, and this one is async: use the driver's sync class")
    if getattr(connection, "autocommit", None) is True:
        raise Invalid(
            "this connection is in autocommit mode, where the guard and the effect would be two transactions: set "
            "connection.autocommit = False before ctx.once"
        )
    return module


def _drivers(connection: DriverConnection) -> Iterator[ModuleType]:
    for kind in type(connection).__mro__:
        name = kind.__module__
        while name:
            module = sys.modules.get(name)
            if module is not None and getattr(module, "paramstyle", None) in _PLACES:
                yield module
            name = name.rpartition(".")[0]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
