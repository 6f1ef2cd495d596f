"""Sessions of users' transactions are used again: nothing that a block has set reaches the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import psycopg
import pytest
from psycopg.rows import dict_row

from leasemill import App
from leasemill.store.postgres.transactions import messages
from tests.store.postgres.committing import WRITE, Connection, cents, held


class State(NamedTuple):
    """Something a block leaves in its session, and a question whose answer shows it."""

    name: str
    statements: tuple[str, ...]
    question: str


STATES: Final = (
    State("search_path", ("set search_path to tenant_a",), "show search_path"),
    State("statement_timeout", ("set statement_timeout = '7s'",), "show statement_timeout"),
    State(
        "set_config",
        ("select set_config('app.tenant', 'a', false)",),
        "select coalesce(current_setting('app.tenant', true), '')",
    ),
    State("read only", ("set session characteristics as transaction read only",), "show default_transaction_read_only"),
    State("role", ("set role leasemill_test_tenant",), "select current_user"),
    State("session authorization", ("set session authorization leasemill_test_tenant",), "select session_user"),
    State("temporary table", ("create temporary table mine (n int)",), "select to_regclass('pg_temp.mine')"),
    State(
        "advisory lock",
        ("select pg_advisory_lock(4711)",),
        "select count(*) from pg_locks where locktype = 'advisory' and objid = 4711",
    ),
    State("listen", ("listen news",), "select count(*) from pg_listening_channels()"),
    State("cursor", ("declare mine cursor with hold for select 1",), "select count(*) from pg_cursors"),
    State(
        "prepared statement",
        ("prepare mine as select 1",),
        "select count(*) from pg_prepared_statements where name = 'mine'",
    ),
)


@pytest.fixture
def app(postgres_url: str, bank: Connection, admin: Connection) -> Iterator[App]:
    admin.execute("drop role if exists leasemill_test_tenant")
    admin.execute("create role leasemill_test_tenant superuser")
    with App(f"{postgres_url}&commit_pool_size=1") as made:
        yield made
    admin.execute("drop role leasemill_test_tenant")


class Broke(Exception):
    """What ends a block that fails."""


def in_block(app: App, statements: tuple[str, ...], *, is_async: bool, fails: bool = False) -> object:
    """The answer to the last one."""
    answers: list[object] = []

    async def run() -> object:
        context, _ = held(app)
        async with context.commit() as tx:
            for statement in statements:
                cursor = await tx.execute(statement)
                answers.append(await cursor.fetchone() if cursor.description else None)
            if fails:
                raise Broke
        return answers[-1]

    def run_sync() -> object:
        context, _ = held(app)
        with context.commit() as tx:
            for statement in statements:
                cursor = tx.execute(statement)
                answers.append(cursor.fetchone() if cursor.description else None)
            if fails:
                raise Broke
        return answers[-1]

    try:
        return asyncio.run(run()) if is_async else run_sync()
    except Broke:
        return None


@pytest.mark.parametrize("fails", [False, True], ids=["committed", "rolled back"])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_the_next_block_finds_the_session_as_it_was(app: App, state: State, is_async: bool, fails: bool) -> None:
    before = in_block(app, (state.question,), is_async=is_async)
    inside = in_block(app, (*state.statements, state.question), is_async=is_async, fails=fails)
    if not fails and state.name != "listen":  # that begins with the commit
        assert inside != before
    assert in_block(app, (state.question,), is_async=is_async) == before


def test_a_lock_is_free_when_its_block_has_ended_not_when_the_next_begins(app: App, bank: Connection) -> None:
    in_block(app, ("select pg_advisory_lock(4711)",), is_async=False)
    row = bank.execute("select pg_try_advisory_lock(4711), pg_advisory_unlock(4711)").fetchone()
    assert row == (True, True)


def test_the_session_is_used_again_with_what_psycopg_has_prepared_in_it(app: App) -> None:
    question = "select pg_backend_pid() || ' ' || (select count(*) from pg_prepared_statements)"
    for _ in range(6):
        in_block(app, ("select 1",), is_async=False)
    first = in_block(app, (question,), is_async=False)
    in_block(app, ("set search_path to tenant_a",), is_async=False)
    assert in_block(app, (question,), is_async=False) == first
    assert str(first).endswith(" 1',)")


def test_what_was_set_on_the_connection_object_is_gone_too(app: App) -> None:
    seen: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        seen.append(str(diagnostic.message_primary))

    context, _ = held(app)
    with context.commit() as tx:
        connection: Any = tx.connection
        connection.row_factory = dict_row
        connection.cursor_factory = psycopg.RawCursor
        connection.server_cursor_factory = psycopg.RawServerCursor
        connection.prepare_threshold = 0
        connection.add_notice_handler(note)
        connection.add_notify_handler(print)
        connection.remove_notify_handler(print)
        connection.adapters.register_loader("int4", psycopg.types.string.TextLoader)
        connection.execute("do $$ begin raise notice 'mine'; end $$")
    assert seen == ["mine"]
    context, _ = held(app)
    with context.commit() as tx:
        again: Any = tx.connection
        assert again is connection
        assert again.execute("select %s::int4 as n", [1]).fetchone() == (1,)
        assert again.prepare_threshold == 5
        assert again.server_cursor_factory is psycopg.ServerCursor
        again.execute("do $$ begin raise notice 'yours'; end $$")
    assert seen == ["mine"]


def test_a_session_with_a_prepared_statement_of_the_users_is_not_used_again(app: App) -> None:
    first = in_block(app, ("prepare mine as select 1", "select pg_backend_pid()"), is_async=False)
    assert in_block(app, ("select pg_backend_pid()",), is_async=False) != first


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_a_commit_stands_if_its_session_cannot_be_made_as_before(
    app: App, bank: Connection, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(messages, "RESET", b";select 1 / 0;")
        first = in_block(app, (WRITE % 7, "select pg_backend_pid()"), is_async=is_async)
    assert cents(bank) == 7
    assert in_block(app, ("select pg_backend_pid()",), is_async=is_async) != first
