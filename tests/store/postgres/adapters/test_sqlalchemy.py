"""What is SQLAlchemy's own: the unit of work, its events, its kinds of sessions, and what it calls a transaction."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, select, text
from sqlalchemy.exc import IntegrityError, InvalidRequestError, PendingRollbackError, ResourceClosedError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

from leasemill import App, Context, JobType
from leasemill.errors import Invalid, LeaseLost, Refused
from leasemill.store.postgres.driver.url import parse_url
from tests.store.postgres.adapters.subjects import async_engine, dialect_url
from tests.store.postgres.adapters.test_commit import has_marker
from tests.store.postgres.committing import Connection, cents, drained, held, nothing

Note = JobType[[int], int]


class Base(DeclarativeBase):
    pass


class Balance(Base):
    __tablename__ = "balance"
    account: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


@pytest.fixture(params=["psycopg", "psycopg2"])
def engine(request: pytest.FixtureRequest, postgres_url: str, bank: Connection) -> Iterator[Engine]:
    engine = create_engine(dialect_url(postgres_url, request.param))
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_session(
    request: pytest.FixtureRequest, postgres_url: str, bank: Connection
) -> AsyncIterator[AsyncSession]:
    async with async_engine(postgres_url, request.param) as engine, AsyncSession(engine) as session:
        yield session


# The unit of work ------------------------------------------------------------------------------------------------


def test_what_the_session_holds_back_is_flushed_and_is_part_of_the_commit(
    app: App, bank: Connection, session: Session
) -> None:
    context, lease = held(app)
    with context.commit(session):
        ann = session.get_one(Balance, "ann")
        ann.cents += 7
        session.add(Balance(account="bob", cents=1))
    assert ann.cents == 7  # expired by the commit, and loaded again
    assert bank.execute("select * from balance order by account").fetchall() == [("ann", 7), ("bob", 1)]
    assert has_marker(app, lease)


async def test_an_async_session_does_so_too(app: App, bank: Connection, async_session: AsyncSession) -> None:
    context, lease = held(app)
    async with context.commit(async_session):
        ann = await async_session.get_one(Balance, "ann")
        ann.cents += 7
        async_session.add(Balance(account="bob", cents=1))
    await async_session.refresh(ann)
    assert ann.cents == 7
    assert bank.execute("select * from balance order by account").fetchall() == [("ann", 7), ("bob", 1)]
    assert has_marker(app, lease)


def test_objects_keep_their_values_where_they_do_not_expire(app: App, bank: Connection, engine: Engine) -> None:
    context, _ = held(app)
    with Session(engine, expire_on_commit=False) as session:
        with context.commit(session):
            ann = session.get_one(Balance, "ann")
            ann.cents = 5
        assert not session.in_transaction()
        assert ann.cents == 5
        assert not session.in_transaction()


def test_a_transaction_that_is_open_already_is_joined(app: App, bank: Connection, session: Session) -> None:
    """A session begins by itself with what is read before the block."""
    context, lease = held(app)
    ann = session.scalars(select(Balance)).one()
    session.add(Balance(account="bob", cents=ann.cents))
    with context.commit(session):
        ann.cents += 7
    assert bank.execute("select * from balance order by account").fetchall() == [("ann", 7), ("bob", 0)]
    assert has_marker(app, lease)


def test_so_is_one_of_a_with_statement(app: App, bank: Connection, session: Session) -> None:
    context, lease = held(app)
    with session.begin():
        session.get_one(Balance, "ann").cents += 7
        with context.commit(session):
            pass
    assert (cents(bank), has_marker(app, lease)) == (7, True)


def test_a_flush_that_fails_is_the_handlers_error_and_leaves_nothing(
    app: App, bank: Connection, session: Session
) -> None:
    context, lease = held(app)
    with pytest.raises(IntegrityError), context.commit(session):
        session.get_one(Balance, "ann").cents = 7
        session.expunge_all()
        session.execute(text("update balance set cents = 7"))
        session.add(Balance(account="ann", cents=1))
    assert (cents(bank), has_marker(app, lease)) == (0, False)
    assert session.scalars(select(Balance.cents)).all() == [0]


def test_a_flush_that_failed_and_was_swallowed_does_not_commit(app: App, bank: Connection, session: Session) -> None:
    """SQLAlchemy has rolled back by then."""
    context, lease = held(app)
    with pytest.raises(Refused, match="was ended inside its block"), context.commit(session):
        session.add(Balance(account="ann", cents=1))
        with pytest.raises(IntegrityError):
            session.flush()
    assert (cents(bank), has_marker(app, lease)) == (0, False)
    assert session.scalars(select(Balance.cents)).all() == [0]


def test_a_conflict_inside_a_savepoint_is_undone_alone(app: App, bank: Connection, session: Session) -> None:
    context, lease = held(app)
    with context.commit(session):
        session.get_one(Balance, "ann").cents = 7
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(text("insert into balance values ('ann', 1)"))
    assert (cents(bank), has_marker(app, lease)) == (7, True)


def test_a_savepoint_that_is_still_open_is_released_by_the_commit(app: App, bank: Connection, session: Session) -> None:
    context, lease = held(app)
    with context.commit(session) as tx:
        session.begin_nested()
        session.get_one(Balance, "ann").cents = 7
        tx.enqueue(nothing(app))
    assert (cents(bank), has_marker(app, lease)) == (7, True)
    assert not session.in_transaction()


# Events ----------------------------------------------------------------------------------------------------------


def test_events_run_as_for_any_commit_and_what_they_write_is_guarded(
    app: App, bank: Connection, session: Session
) -> None:
    """What a listener adds at the last moment, behind our own statements, is part of the commit as well."""
    seen: list[str] = []

    def audit(flushed: Session, *_: Any) -> None:
        seen.append("after_flush")
        if not any(isinstance(one, Balance) and one.account == "audit" for one in flushed.new):
            flushed.add(Balance(account="audit", cents=len(seen)))

    def last(committed: Session) -> None:
        seen.append("before_commit")
        committed.execute(text("insert into balance values ('last', 1)"))

    event.listen(session, "after_flush", audit)
    event.listen(session, "before_commit", last)
    event.listen(session, "after_commit", lambda _: seen.append("after_commit"))
    context, lease = held(app)
    with pytest.raises(LeaseLost), context.commit(session):
        session.get_one(Balance, "ann").cents = 7
        app.store.cancel([lease.job.id], by="me", reason="a test")
    assert bank.execute("select account from balance").fetchall() == [("ann",)]
    assert "after_commit" not in seen
    context, lease = held(app)
    with context.commit(session):
        session.get_one(Balance, "ann").cents = 7
    assert bank.execute("select account from balance order by 1").fetchall() == [("ann",), ("audit",), ("last",)]
    assert (seen[-1], seen.count("after_commit")) == ("after_commit", 1)


def test_an_error_of_a_listener_before_the_commit_is_the_handlers(app: App, bank: Connection, session: Session) -> None:
    def refuse(_: Session) -> None:
        raise ValueError("not today")

    event.listen(session, "before_commit", refuse)
    context, lease = held(app)
    with pytest.raises(ValueError, match="not today"), context.commit(session):
        session.get_one(Balance, "ann").cents = 7
    assert (cents(bank), has_marker(app, lease), context.is_committed) == (0, False, False)
    event.remove(session, "before_commit", refuse)
    with context.commit(session):
        session.get_one(Balance, "ann").cents = 8
    assert (cents(bank), has_marker(app, lease)) == (8, True)


def test_our_statements_are_seen_by_events_and_by_the_log(
    note: Note, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _c, _u, statement, *_: seen.append(statement))
    with caplog.at_level(logging.INFO, "sqlalchemy.engine"), Session(engine) as session:
        note.using(session).enqueue(1)
        assert session.in_transaction()
    assert any(".jobs" in statement for statement in seen)
    assert "BEGIN (implicit)" in caplog.text
    assert ".jobs" in caplog.text
    assert "ROLLBACK" in caplog.text


# A transaction ended by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Session.commit, lambda session: session.connection().commit()])
def test_a_commit_inside_the_block_is_refused_and_commits_nothing(
    app: App, bank: Connection, session: Session, end: Callable[[Session], None]
) -> None:
    context, lease = held(app)
    with pytest.raises(Invalid, match="do not commit inside it"), context.commit(session):
        session.get_one(Balance, "ann").cents = 7
        session.flush()
        end(session)
    assert (cents(bank), has_marker(app, lease)) == (0, False)
    session.get_one(Balance, "ann").cents = 8
    session.commit()
    assert cents(bank) == 8


def test_so_is_one_of_a_connection_although_sqlalchemy_would_not_roll_back(
    app: App, bank: Connection, engine: Engine
) -> None:
    context, lease = held(app)
    with engine.connect() as connection:
        with pytest.raises(Invalid, match="do not commit inside it"), context.commit(connection):
            connection.execute(text("update balance set cents = 7"))
            connection.commit()
        connection.execute(text("select 1"))
        connection.commit()
    assert (cents(bank), has_marker(app, lease)) == (0, False)


def test_a_refused_commit_that_is_swallowed_commits_nothing_either(app: App, bank: Connection, engine: Engine) -> None:
    context, lease = held(app)
    with engine.connect() as connection:
        with pytest.raises(Refused, match="was ended inside its block"), context.commit(connection):
            connection.execute(text("update balance set cents = 7"))
            with pytest.raises(Invalid):
                connection.commit()
        connection.commit()
    assert (cents(bank), has_marker(app, lease)) == (0, False)


async def test_an_async_session_refuses_it_too(app: App, bank: Connection, async_session: AsyncSession) -> None:
    context, lease = held(app)
    with pytest.raises(Invalid, match="do not commit inside it"):
        async with context.commit(async_session):
            (await async_session.get_one(Balance, "ann")).cents = 7
            await async_session.commit()
    assert (cents(bank), has_marker(app, lease)) == (0, False)
    (await async_session.get_one(Balance, "ann")).cents = 8
    await async_session.commit()
    assert cents(bank) == 8


@pytest.mark.parametrize("end", [Session.rollback, Session.close])
def test_a_session_rolled_back_or_closed_in_the_block_is_not_marked(
    app: App, bank: Connection, session: Session, end: Callable[[Session], None]
) -> None:
    context, lease = held(app)
    with pytest.raises(Refused, match="was ended inside its block"), context.commit(session):
        session.get_one(Balance, "ann").cents = 7
        end(session)
        session.get_one(Balance, "ann").cents = 8
    assert (cents(bank), has_marker(app, lease)) == (0, False)


@pytest.mark.parametrize("end", ["commit", " ROLLBACK;", "end", "abort", "rollback and chain"])
def test_sql_that_ends_the_transaction_is_refused(app: App, bank: Connection, session: Session, end: str) -> None:
    context, lease = held(app)
    with pytest.raises(Invalid, match="do not commit inside it"), context.commit(session):
        session.execute(text("update balance set cents = 7"))
        session.execute(text(end))
    assert (cents(bank), has_marker(app, lease)) == (0, False)


def test_sql_that_ends_a_savepoint_is_not(app: App, bank: Connection, session: Session) -> None:
    context, lease = held(app)
    with context.commit(session):
        session.execute(text("update balance set cents = 7"))
        session.execute(text("savepoint mine"))
        session.execute(text("update balance set cents = 8"))
        session.execute(text("rollback to mine"))
        session.execute(text("release mine"))
    assert (cents(bank), has_marker(app, lease)) == (7, True)


def test_no_listener_remains_on_the_connection(app: App, bank: Connection, engine: Engine) -> None:
    with engine.connect() as connection:
        for _ in range(2):
            context, _ = held(app)
            with context.commit(connection):
                connection.execute(text("update balance set cents = cents + 7"))
            connection.execute(text("update balance set cents = cents + 1"))
            connection.commit()
            context, _ = held(app)
            with pytest.raises(ValueError, match="x"), context.commit(connection):
                raise ValueError("x")
            connection.execute(text("update balance set cents = cents + 1"))
            connection.commit()
    assert cents(bank) == 18


# What is refused -------------------------------------------------------------------------------------------------


def test_a_savepoint_around_the_block_is_refused_and_stays(app: App, bank: Connection, session: Session) -> None:
    context, lease = held(app)
    session.execute(text("update balance set cents = 7"))
    with session.begin_nested():
        with pytest.raises(Invalid, match="leave the savepoint first"), context.commit(session):
            pass
        session.execute(text("update balance set cents = 8"))
    session.commit()
    assert (cents(bank), has_marker(app, lease)) == (8, False)


@pytest.mark.parametrize("level", ["engine", "session"])
def test_autocommit_is_refused(app: App, note: Note, engine: Engine, level: str) -> None:
    if level == "engine":
        session = Session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    else:
        session = Session(engine)
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
    context, lease = held(app)
    with session:
        with pytest.raises(Invalid, match="isolation level AUTOCOMMIT"):
            note.using(session).enqueue(1)
        with pytest.raises(Invalid, match="isolation level AUTOCOMMIT"), context.commit(session):
            pass
    assert app.store.claim("w", ["notes"], 1) == []
    assert not has_marker(app, lease)


async def test_autocommit_of_an_async_engine_is_refused(
    app: App, note: Note, async_session: AsyncSession, bank: Connection
) -> None:
    engine = async_session.bind
    assert isinstance(engine, AsyncEngine)
    async with AsyncSession(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(Invalid, match="isolation level AUTOCOMMIT"):
            await note.using(session).aenqueue(1)


def test_stricter_isolation_is_guarded_too(app: App, bank: Connection, engine: Engine) -> None:
    """The transaction's snapshot is older than the loss of the lease."""
    context, lease = held(app)
    with Session(engine.execution_options(isolation_level="REPEATABLE READ")) as session:
        with pytest.raises(LeaseLost), context.commit(session):
            session.get_one(Balance, "ann").cents = 7
            session.flush()
            app.store.cancel([lease.job.id], by="me", reason="a test")
        assert cents(bank) == 0
        context, lease = held(app)
        with context.commit(session):
            session.get_one(Balance, "ann").cents = 8
    assert (cents(bank), has_marker(app, lease)) == (8, True)


def test_two_phases_are_refused(app: App, note: Note, engine: Engine) -> None:
    context, _ = held(app)
    with Session(engine, twophase=True) as session:
        with pytest.raises(Invalid, match="two phases"):
            note.using(session).enqueue(1)
        with pytest.raises(Invalid, match="two phases"), context.commit(session):
            pass
    with engine.connect() as connection, connection.begin_twophase(), pytest.raises(Invalid, match="two phases"):
        note.using(connection).enqueue(1)


def test_another_database_than_postgresql_is_refused(app: App, note: Note) -> None:
    context, _ = held(app)
    engine = create_engine("sqlite://")
    with Session(engine) as session:
        with pytest.raises(Invalid, match="for sqlite, not for PostgreSQL"):
            note.using(session).enqueue(1)
        with pytest.raises(Invalid, match="for sqlite, not for PostgreSQL"), context.commit(session):
            pass
    engine.dispose()


def test_a_session_without_a_default_engine_is_refused(note: Note, engine: Engine) -> None:
    with Session(binds={Balance: engine}) as session:
        with pytest.raises(Invalid, match=r"session\.connection\(bind_arguments="):
            note.using(session).enqueue(1)
        connection = session.connection(bind_arguments={"mapper": Balance})
        handle = note.using(connection).enqueue(1)
        session.commit()
    assert handle.record().spec.kind == "note"


def test_what_makes_sessions_and_connections_is_refused_with_what_to_write(
    app: App, note: Note, engine: Engine, async_session: AsyncSession
) -> None:
    context, _ = held(app)
    async_made = async_session.bind
    for given, advice in (
        (engine, "with engine.connect"),
        (sessionmaker(engine), "with Session"),
        (async_made, "async with engine.connect"),
        (async_sessionmaker(), "async with Session"),
    ):
        with pytest.raises(Invalid, match=advice):
            note.using(given).enqueue(1)
        with pytest.raises(Invalid, match=advice), context.commit(given):
            pass


@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint", "rollback_only"])
def test_a_session_that_cannot_commit_its_connection_is_refused(
    app: App, note: Note, bank: Connection, engine: Engine, mode: Any
) -> None:
    """As in suites of tests, where a transaction around each test is rolled back."""
    context, lease = held(app)
    with engine.connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode=mode) as session:
            with pytest.raises(Invalid, match="its commit may commit nothing"), context.commit(session):
                pass
            handle = note.using(session).enqueue(1)
            session.commit()
        outer.rollback()
    assert app.store.job(handle.id) is None
    assert not has_marker(app, lease)


def test_a_closed_connection_is_refused_by_sqlalchemy(app: App, note: Note, engine: Engine) -> None:
    context, _ = held(app)
    connection = engine.connect()
    connection.close()
    with pytest.raises(ResourceClosedError):
        note.using(connection).enqueue(1)
    with pytest.raises(ResourceClosedError), context.commit(connection):
        pass


def test_a_session_closed_for_good_is_refused_by_sqlalchemy(app: App, note: Note, engine: Engine) -> None:
    context, _ = held(app)
    session = Session(engine, close_resets_only=False)
    session.close()
    with pytest.raises(InvalidRequestError, match="permanently closed"):
        note.using(session).enqueue(1)
    with pytest.raises(InvalidRequestError, match="permanently closed"), context.commit(session):
        pass


def test_a_session_that_has_to_be_rolled_back_first_says_so(note: Note, session: Session) -> None:
    session.add(Balance(account="ann", cents=1))
    with pytest.raises(IntegrityError):
        session.flush()
    with pytest.raises(PendingRollbackError):
        note.using(session).enqueue(1)


async def test_each_kind_has_its_call(app: App, note: Note, session: Session, async_session: AsyncSession) -> None:
    context, _ = held(app)
    with pytest.raises(Invalid, match="block the event loop"):
        await note.using(session).aenqueue(1)
    with pytest.raises(Invalid, match=r"await job\.using\("):
        note.using(async_session).enqueue(1)
    with pytest.raises(Invalid, match="block the event loop"):
        async with context.commit(session):
            pass

    def in_a_thread() -> None:
        with context.commit(async_session):
            pass

    with pytest.raises(Invalid, match="write `async with"):
        await asyncio.to_thread(in_a_thread)


# Whatever the engine is set to -----------------------------------------------------------------------------------


def test_engines_may_stream_and_pool_as_they_like(app: App, note: Note, bank: Connection, postgres_url: str) -> None:
    engine = create_engine(dialect_url(postgres_url, "psycopg"), poolclass=NullPool, use_native_hstore=False)
    streaming = engine.execution_options(stream_results=True)
    context, lease = held(app)
    with Session(streaming) as session:
        handle = note.using(session).enqueue(1)
        session.commit()
        with context.commit(session) as tx:
            tx.enqueue(nothing(app))
    assert handle.record().spec.kind == "note"
    assert has_marker(app, lease)
    engine.dispose()


def test_rows_and_loaders_of_the_driver_do_not_matter(app: App, note: Note, postgres_url: str) -> None:
    engine = create_engine(dialect_url(postgres_url, "psycopg"))

    @event.listens_for(engine, "connect")
    def odd(connection: Any, _: Any) -> None:
        connection.execute("set search_path to nowhere")
        connection.execute("set datestyle to 'German'")
        connection.commit()

    with Session(engine) as session:
        note.using(session).options(job_id="known").enqueue(1)
        assert note.using(session).options(job_id="known").enqueue(1).is_duplicate
    engine.dispose()


def test_a_subclass_of_session_is_a_session(note: Note, engine: Engine) -> None:
    class Mine(Session):
        pass

    with Mine(engine) as session, session.begin():
        handle = note.using(session).enqueue(1)
    assert handle.record().spec.kind == "note"


def test_a_handler_may_take_its_session_from_anywhere(app: App, bank: Connection, engine: Engine) -> None:
    make = sessionmaker(engine)

    @app.job
    def deposit(ctx: Context, cents: int) -> None:
        with make() as session, ctx.commit(session) as tx:
            session.get_one(Balance, "ann", with_for_update=True).cents += cents
            tx.set_result(None)

    deposit.enqueue(3)
    deposit.enqueue(4)
    asyncio.run(drained(app))
    assert cents(bank) == 7


# Where it is not installed ---------------------------------------------------------------------------------------

PROGRAM = """
import sys
refused = ("sqlalchemy", "asyncpg", "psycopg2", "django")

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import psycopg
from leasemill import App, Context, Worker
import asyncio

app = App(sys.argv[1])

@app.job
def effect(ctx: Context) -> None:
    with psycopg.connect(sys.argv[2]) as connection, ctx.commit(connection) as tx:
        tx.enqueue(other)

@app.job
def other() -> int:
    return 7

with psycopg.connect(sys.argv[2]) as connection:
    job = effect.using(connection).options(job_id="one").enqueue()
asyncio.run(Worker(app, drain=True, handle_signals=False).run())
print(app.handle("one/0").result(0), *[name for name in refused if name in sys.modules])
app.close()
"""


def test_without_sqlalchemy_nothing_of_it_is_imported(postgres_url: str) -> None:
    command = [sys.executable, "-c", PROGRAM, postgres_url, parse_url(postgres_url)[0]]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    reported = [line for line in completed.stderr.splitlines() if " is off: a crash of the server" not in line]
    assert (completed.stdout.strip(), reported) == ("7", [])
