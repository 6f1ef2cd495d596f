"""What a user hands to `using()` and `ctx.commit()`, each with the same few things to do: one test for all of them.

Sync ones are used in a thread of their own, as a `def` handler would.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import asyncpg
import psycopg
import psycopg2
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from leasemill import Context, JobHandle, JobType
from leasemill.api.call import Call
from leasemill.api.commit import Gathered
from leasemill.store.postgres.driver.url import parse_url

AnswerT = TypeVar("AnswerT")


class Subject(ABC):
    """A session or a connection that a test holds."""

    errors: tuple[type[Exception], ...] = (DBAPIError,)
    """What a statement that the server refuses raises."""

    def __init__(self, carried: Any) -> None:
        self.carried = carried
        """What is handed over."""

    @abstractmethod
    async def execute(self, statement: str) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    async def begin(self) -> None: ...

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...

    @abstractmethod
    async def enqueue(self, job: JobType[..., Any], *values: Any) -> JobHandle[Any]: ...

    @abstractmethod
    async def enqueue_many(self, job: JobType[..., Any], calls: Sequence[Call[Any]]) -> list[JobHandle[Any]]: ...

    @abstractmethod
    def savepoint(self) -> AbstractAsyncContextManager[None]: ...

    @abstractmethod
    def block(self, context: Context) -> AbstractAsyncContextManager[Gathered]:
        """`with ctx.commit(...) as tx`, or `async with`."""

    async def deposit(self, cents: int) -> None:
        await self.execute(f"update balance set cents = cents + {cents} where account = 'ann'")

    @property
    def losses(self) -> tuple[type[Exception], ...]:
        """What is raised when the connection is lost."""
        return (*self.errors, OSError)

    async def pid(self) -> int:
        return int((await self.execute("select pg_backend_pid()"))[0][0])


class _Sync(Subject):
    def __init__(self, carried: Any, thread: ThreadPoolExecutor) -> None:
        super().__init__(carried)
        self._thread = thread

    async def call(self, function: Callable[..., AnswerT], *values: Any) -> AnswerT:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *values)

    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return await self.call(self._execute, statement)

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        result = self.carried.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    async def begin(self) -> None:
        await self.call(self.carried.begin)

    async def commit(self) -> None:
        await self.call(self.carried.commit)

    async def rollback(self) -> None:
        await self.call(self.carried.rollback)

    async def enqueue(self, job: JobType[..., Any], *values: Any) -> JobHandle[Any]:
        return await self.call(job.using(self.carried).enqueue, *values)

    async def enqueue_many(self, job: JobType[..., Any], calls: Sequence[Call[Any]]) -> list[JobHandle[Any]]:
        return await self.call(job.using(self.carried).enqueue_many, calls)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        nested = await self.call(self.carried.begin_nested)
        async with self._entered(nested):
            yield

    @asynccontextmanager
    async def block(self, context: Context) -> AsyncIterator[Gathered]:
        boundary = await self.call(context.commit, self.carried)
        async with self._entered(boundary) as tx:
            yield tx

    @asynccontextmanager
    async def _entered(self, manager: Any) -> AsyncIterator[Any]:
        value = await self.call(manager.__enter__)
        try:
            yield value
        except BaseException as error:
            await self.call(manager.__exit__, type(error), error, error.__traceback__)
            raise
        await self.call(manager.__exit__, None, None, None)


class _Async(Subject):
    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        result = await self.carried.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    async def begin(self) -> None:
        await self.carried.begin()

    async def commit(self) -> None:
        await self.carried.commit()

    async def rollback(self) -> None:
        await self.carried.rollback()

    async def enqueue(self, job: JobType[..., Any], *values: Any) -> JobHandle[Any]:
        return await job.using(self.carried).aenqueue(*values)

    async def enqueue_many(self, job: JobType[..., Any], calls: Sequence[Call[Any]]) -> list[JobHandle[Any]]:
        return await job.using(self.carried).aenqueue_many(calls)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with self.carried.begin_nested():
            yield

    @asynccontextmanager
    async def block(self, context: Context) -> AsyncIterator[Gathered]:
        async with context.commit(self.carried) as tx:
            yield tx


class _Asyncpg(_Async):
    errors = (asyncpg.PostgresError, asyncpg.InterfaceError)

    def __init__(self, carried: Any) -> None:
        super().__init__(carried)
        self._transaction: Any = None

    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.carried.fetch(statement)]

    async def begin(self) -> None:
        self._transaction = self.carried.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with self.carried.transaction():
            yield


class _SyncDriver(_Sync):
    """A connection of psycopg or psycopg2: it begins with the first statement."""

    errors = (psycopg.Error, psycopg2.Error)

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self.carried.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    async def begin(self) -> None:
        pass

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        await self.execute("savepoint mine")
        try:
            yield
        except BaseException:
            await self.execute("rollback to savepoint mine")
            raise
        await self.execute("release savepoint mine")


class _AsyncDriver(_Async):
    """An async connection of psycopg."""

    errors = (psycopg.Error,)

    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = await self.carried.execute(statement)
        return await cursor.fetchall() if cursor.description else []

    async def begin(self) -> None:
        pass

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        async with self.carried.transaction():
            yield


def dialect_url(postgres_url: str, driver: str) -> str:
    """The store's database, as SQLAlchemy names it."""
    address = postgres_url.partition("?")[0].replace("postgresql://", f"postgresql+{driver}://")
    options = [one for one in postgres_url.partition("?")[2].split("&") if not one.startswith("schema=")]
    return f"{address}?{'&'.join(options)}"


def asyncpg_options(postgres_url: str) -> dict[str, Any]:
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    given = conninfo_to_dict(parse_url(postgres_url)[0])
    names = {"host": "host", "port": "port", "user": "user", "password": "password", "dbname": "database"}
    return {ours: given[theirs] for theirs, ours in names.items() if theirs in given}


@asynccontextmanager
async def sync_engine(postgres_url: str, driver: str, **options: Any) -> AsyncIterator[Engine]:
    engine = create_engine(dialect_url(postgres_url, driver), **options)
    try:
        yield engine
    finally:
        engine.dispose()


@asynccontextmanager
async def async_engine(postgres_url: str, driver: str, **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(dialect_url(postgres_url, driver), **options)
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def _sync(postgres_url: str, driver: str, made: Callable[[Engine], Any]) -> AsyncIterator[Subject]:
    with ThreadPoolExecutor(1) as thread:
        async with sync_engine(postgres_url, driver) as engine:
            subject = _Sync(made(engine), thread)
            try:
                yield subject
            finally:
                await subject.call(subject.carried.close)


@asynccontextmanager
async def _async(postgres_url: str, driver: str, made: Callable[[AsyncEngine], Any]) -> AsyncIterator[Subject]:
    async with async_engine(postgres_url, driver) as engine:
        subject = _Async(made(engine))
        if isinstance(subject.carried, AsyncConnection):
            await subject.carried.start()
        try:
            yield subject
        finally:
            await subject.carried.close()


@asynccontextmanager
async def _driver(postgres_url: str, connect: Callable[[str], Any]) -> AsyncIterator[Subject]:
    with ThreadPoolExecutor(1) as thread:
        subject = _SyncDriver(connect(parse_url(postgres_url)[0]), thread)
        try:
            yield subject
        finally:
            await subject.call(subject.carried.close)


@asynccontextmanager
async def _async_driver(postgres_url: str) -> AsyncIterator[Subject]:
    connection = await psycopg.AsyncConnection.connect(parse_url(postgres_url)[0])
    try:
        yield _AsyncDriver(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_connection(postgres_url: str, _driver: str) -> AsyncIterator[Subject]:
    connection = await asyncpg.connect(**asyncpg_options(postgres_url))
    try:
        yield _Asyncpg(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_pool(postgres_url: str, _driver: str) -> AsyncIterator[Subject]:
    options = {**asyncpg_options(postgres_url), "min_size": 1, "max_size": 1, "statement_cache_size": 0}
    async with asyncpg.create_pool(**options) as pool:
        connection = await pool.acquire()
        try:
            yield _Asyncpg(connection)
        finally:
            with suppress(asyncpg.exceptions.ConnectionDoesNotExistError):  # it was cut, and the pool did not know yet
                await pool.release(connection)


def _scoped(engine: Engine) -> scoped_session[Session]:
    return scoped_session(sessionmaker(engine))


def _async_scoped(engine: AsyncEngine) -> async_scoped_session[AsyncSession]:
    return async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)


Opened = Callable[[str], AbstractAsyncContextManager[Subject]]


def _variant(opened: Callable[..., AbstractAsyncContextManager[Subject]], *values: Any) -> Opened:
    return lambda postgres_url: opened(postgres_url, *values)


SQLALCHEMY: Final[dict[str, Opened]] = {
    "Session psycopg": _variant(_sync, "psycopg", Session),
    "Session psycopg2": _variant(_sync, "psycopg2", Session),
    "scoped_session psycopg": _variant(_sync, "psycopg", _scoped),
    "Connection psycopg": _variant(_sync, "psycopg", Engine.connect),
    "Connection psycopg2": _variant(_sync, "psycopg2", Engine.connect),
    "AsyncSession psycopg": _variant(_async, "psycopg", AsyncSession),
    "AsyncSession asyncpg": _variant(_async, "asyncpg", AsyncSession),
    "async_scoped_session asyncpg": _variant(_async, "asyncpg", _async_scoped),
    "AsyncConnection psycopg": _variant(_async, "psycopg", AsyncEngine.connect),
    "AsyncConnection asyncpg": _variant(_async, "asyncpg", AsyncEngine.connect),
}
ASYNCPG: Final[dict[str, Opened]] = {
    "asyncpg connection": _variant(_asyncpg_connection, "asyncpg"),
    "asyncpg pool": _variant(_asyncpg_pool, "asyncpg"),
}
PSYCOPG: Final[dict[str, Opened]] = {
    "psycopg connection": _variant(_driver, psycopg.connect),
    "psycopg2 connection": _variant(_driver, psycopg2.connect),
    "psycopg AsyncConnection": _variant(_async_driver),
}
SUBJECTS: Final = {**SQLALCHEMY, **ASYNCPG, **PSYCOPG}
SYNC: Final = (Connection, Session, scoped_session)
