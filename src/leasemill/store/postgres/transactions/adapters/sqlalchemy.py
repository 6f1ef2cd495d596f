"""A Session or Connection of SQLAlchemy's, sync or async, with its drivers psycopg, psycopg2 and asyncpg.

Our statements are `exec_driver_sql` on the Connection that the user's own statements take: the transaction begins when
SQLAlchemy begins it, and its events, its log and its errors are as ever. The driver's connection is not touched: the
adapter for asyncpg begins with the first statement of SQLAlchemy's and would know of none that was sent around it.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, TwoPhaseTransaction, event
from sqlalchemy.exc import SQLAlchemyError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from leasemill.errors import Invalid
from leasemill.store.postgres.statements import Statement
from leasemill.store.postgres.steps import Row
from leasemill.store.postgres.transactions.adapters.base import AsyncUserConnection, UserConnection

ResultT = TypeVar("ResultT")

DRIVERS: Final = ("psycopg", "psycopg2", "asyncpg")
AT_ONCE: Final = {"stream_results": False}
"""Also where the user's statements are streamed: a cursor on the server cannot insert."""

ENDS: Final = re.compile(r"\s*(commit|end|abort|rollback(?!\s+((work|transaction)\s+)?to))\b", re.IGNORECASE)
ENDED_BY_HAND: Final = (
    "the block of ctx.commit() commits when it is left, with the job's marker: do not commit inside it, nor send a "
    "rollback as SQL"
)


class TransactionWatch:
    """Keeps the transaction of a block from being committed in it, and notices if it is rolled back."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.is_open = True
        self.may_commit = False
        self._listeners: dict[str, Callable[..., None]] = {
            "commit": self._refuse,
            "rollback": self._note,
            "before_cursor_execute": self._refuse_text,
        }
        for name, listener in self._listeners.items():
            event.listen(connection, name, listener)

    def end(self) -> None:
        for name, listener in self._listeners.items():
            event.remove(self._connection, name, listener)

    def _refuse(self, connection: Connection) -> None:
        if self.may_commit:
            return
        self.is_open = False
        # SQLAlchemy takes a commit that failed for one that the server has ended, and would send no rollback.
        connection.dialect.do_rollback(connection.connection)
        raise Invalid(ENDED_BY_HAND)

    def _refuse_text(self, _connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if ENDS.match(statement):  # SQLAlchemy would not notice
            raise Invalid(ENDED_BY_HAND)

    def _note(self, _connection: Connection) -> None:
        self.is_open = False


class _SqlAlchemyAdapter(UserConnection):
    def __init__(self, given: Session | Connection) -> None:
        self._given = given
        self._watch: TransactionWatch | None = None

    @property
    def connection(self) -> object:
        return self._given

    def check(self) -> None:
        bind, kind = self._bind(), type(self._given).__name__
        if bind.dialect.name != "postgresql":
            raise Invalid(f"this {kind} is for {bind.dialect.name}, not for PostgreSQL, where the store is")
        if bind.dialect.driver not in DRIVERS:
            raise Invalid(f"this {kind} has the driver {bind.dialect.driver}: use one of {', '.join(DRIVERS)}")
        if self._is_two_phase():
            raise Invalid(
                f"this {kind} commits in two phases, in which PostgreSQL cannot notify: use one that does not"
            )

    def commits_each_statement(self) -> bool:
        return False

    def rows(self, statement: Statement, given: Mapping[str, Any]) -> list[Row]:
        connection = self._begun()
        values = statement.plain(given)
        if connection.dialect.driver == "asyncpg":
            result = connection.exec_driver_sql(statement.dollar(), tuple(values.values()), AT_ONCE)
        else:
            result = connection.exec_driver_sql(statement.pyformat(), values, AT_ONCE)
        return [tuple(row) for row in result]

    def begin(self) -> None:
        self._check_that_it_can_commit()
        if not self._given.in_transaction():
            self._given.begin()
        self._watch = TransactionWatch(self._begun())

    def is_open(self) -> bool:
        return self._watch is not None and self._watch.is_open

    def commit(self) -> None:
        assert self._watch is not None
        self._watch.may_commit = True
        self._given.commit()
        self._unwatch()

    def roll_back(self) -> None:
        if self._unwatch():
            with suppress(SQLAlchemyError):  # of a connection that is lost there is nothing to roll back
                self._given.rollback()

    def _unwatch(self) -> bool:
        """Return True if there is a transaction to end."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()
        return watch is not None

    def _begun(self) -> Connection:
        """Where our statements are sent; SQLAlchemy begins a transaction there, if none is open."""
        connection = self._connected()
        if getattr(connection.connection.dbapi_connection, "autocommit", False):
            raise Invalid(
                f"this {type(self._given).__name__} has the isolation level AUTOCOMMIT, so that a rollback would not "
                "undo anything: use one without it"
            )
        return connection

    def _check_that_it_can_commit(self) -> None:
        if self._given.in_nested_transaction():
            raise Invalid("a savepoint is open, and ctx.commit() ends the whole transaction: leave the savepoint first")

    @abstractmethod
    def _bind(self) -> Engine | Connection: ...

    @abstractmethod
    def _connected(self) -> Connection: ...

    @abstractmethod
    def _is_two_phase(self) -> bool: ...


class ConnectionAdapter(_SqlAlchemyAdapter):
    def __init__(self, given: Connection) -> None:
        super().__init__(given)
        self._given: Connection = given

    def _bind(self) -> Connection:
        return self._given

    def _connected(self) -> Connection:
        return self._given

    def flush(self) -> None:
        """A Connection holds nothing back."""

    def _is_two_phase(self) -> bool:
        return isinstance(self._given.get_transaction(), TwoPhaseTransaction)


class SessionAdapter(_SqlAlchemyAdapter):
    def __init__(self, given: Session | scoped_session[Session]) -> None:
        session = given() if isinstance(given, scoped_session) else given
        super().__init__(session)
        self._given: Session = session

    def flush(self) -> None:
        self._given.flush()

    def _bind(self) -> Engine | Connection:
        try:
            return self._given.get_bind()
        except UnboundExecutionError as error:
            raise Invalid(
                "this Session has no engine for a statement without a model, so it is not known where the jobs are: "
                "give it a bind= beside its binds=, or hand over session.connection(bind_arguments={'mapper': Model})"
            ) from error

    def _connected(self) -> Connection:
        return self._given.connection()

    def _is_two_phase(self) -> bool:
        return self._given.twophase

    def _check_that_it_can_commit(self) -> None:
        super()._check_that_it_can_commit()
        bind = self._bind()
        if isinstance(bind, Connection) and bind.in_transaction():
            raise Invalid(
                "this Session is bound to a Connection whose transaction is open, so its commit may commit nothing: "
                "hand over the Connection, or a Session of an Engine"
            )


class _AsyncSqlAlchemyAdapter(AsyncUserConnection):
    """The sync adapter, in the greenlet in which SQLAlchemy runs its sync code."""

    def __init__(self, given: AsyncSession | AsyncConnection, sync: _SqlAlchemyAdapter) -> None:
        self._given = given
        self._sync = sync

    @property
    def connection(self) -> object:
        return self._given

    def check(self) -> None:
        self._sync.check()

    def commits_each_statement(self) -> bool:
        return self._sync.commits_each_statement()

    async def rows(self, statement: Statement, given: Mapping[str, Any]) -> list[Row]:
        return await self._run(lambda: self._sync.rows(statement, given))

    async def begin(self) -> None:
        await self._run(self._sync.begin)

    def is_open(self) -> bool:
        return self._sync.is_open()

    async def flush(self) -> None:
        await self._run(self._sync.flush)

    async def commit(self) -> None:
        await self._run(self._sync.commit)

    async def roll_back(self) -> None:
        await self._run(self._sync.roll_back)

    async def _run(self, call: Callable[[], ResultT]) -> ResultT:
        return await self._given.run_sync(lambda _: call())


class AsyncConnectionAdapter(_AsyncSqlAlchemyAdapter):
    def __init__(self, given: AsyncConnection) -> None:
        if given.sync_connection is None:
            raise Invalid("this AsyncConnection is not connected: write `async with engine.connect() as connection`")
        super().__init__(given, ConnectionAdapter(given.sync_connection))


class AsyncSessionAdapter(_AsyncSqlAlchemyAdapter):
    def __init__(self, given: AsyncSession | async_scoped_session[AsyncSession]) -> None:
        session = given() if isinstance(given, async_scoped_session) else given
        super().__init__(session, SessionAdapter(session.sync_session))
