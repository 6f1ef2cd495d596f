"""What is asyncpg's own: a connection without a transaction commits each statement, and only its block ends one."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from leasemill import App, JobType
from leasemill.errors import Invalid
from tests.store.postgres.adapters.subjects import ASYNCPG, SUBJECTS, asyncpg_options
from tests.store.postgres.adapters.test_commit import has_marker
from tests.store.postgres.committing import Connection, cents, held, nothing

Note = JobType[[int], int]


@pytest.mark.parametrize("name", ASYNCPG)
async def test_outside_a_transaction_nothing_is_enqueued(app: App, note: Note, postgres_url: str, name: str) -> None:
    async with SUBJECTS[name](postgres_url) as subject:
        with pytest.raises(Invalid, match=r"async with connection\.transaction\(\)"):
            await subject.enqueue(note, 1)
    assert app.store.claim("w", ["notes"], 1) == []


@pytest.mark.parametrize("name", ASYNCPG)
async def test_a_transaction_around_the_block_is_refused_and_stays(
    app: App, bank: Connection, postgres_url: str, name: str
) -> None:
    context, lease = held(app)
    async with SUBJECTS[name](postgres_url) as subject, subject.carried.transaction():
        await subject.deposit(7)
        with pytest.raises(Invalid, match=r"outside of connection\.transaction\(\)"):
            async with subject.block(context):
                pass
        await subject.deposit(1)
    assert (cents(bank), has_marker(app, lease)) == (8, False)


async def test_codecs_of_the_users_do_not_matter(app: App, note: Note, bank: Connection, postgres_url: str) -> None:
    connection = await asyncpg.connect(**asyncpg_options(postgres_url))
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await connection.execute("set search_path to nowhere, public")
    context, lease = held(app)
    async with connection.transaction():
        await note.using(connection).options(job_id="known").aenqueue(1)
        assert (await note.using(connection).options(job_id="known").aenqueue(1)).is_duplicate
    async with context.commit(connection) as tx:
        await connection.execute("update balance set cents = $1", 7)
        tx.enqueue(nothing(app))
        tx.set_result(5)
    assert (cents(bank), has_marker(app, lease)) == (7, True)
    await connection.close()


async def test_a_class_of_the_users_is_a_connection(note: Note, postgres_url: str) -> None:
    class Mine(asyncpg.Connection):  # type: ignore[misc]
        pass

    connection = await asyncpg.connect(**asyncpg_options(postgres_url), connection_class=Mine)
    async with connection.transaction():
        handle = await note.using(connection).aenqueue(1)
    assert handle.record().spec.kind == "note"
    await connection.close()


async def test_a_pool_is_refused_with_what_to_write(app: App, note: Note, postgres_url: str) -> None:
    context, _ = held(app)
    async with asyncpg.create_pool(**asyncpg_options(postgres_url), min_size=0) as pool:
        given: Any = pool
        with pytest.raises(Invalid, match=r"async with pool\.acquire\(\)"):
            await note.using(given).aenqueue(1)
        with pytest.raises(Invalid, match=r"async with pool\.acquire\(\)"):
            async with context.commit(given):
                pass


async def test_a_connection_that_is_closed_or_given_back_is_refused_by_asyncpg(
    app: App, note: Note, postgres_url: str
) -> None:
    context, _ = held(app)
    connection = await asyncpg.connect(**asyncpg_options(postgres_url))
    await connection.close()
    async with asyncpg.create_pool(**asyncpg_options(postgres_url), min_size=1, max_size=1) as pool:
        released = await pool.acquire()
        await pool.release(released)
        for one in (connection, released):
            with pytest.raises(asyncpg.InterfaceError, match=r"closed|released"):
                await note.using(one).aenqueue(1)
            with pytest.raises(asyncpg.InterfaceError, match=r"closed|released"):
                async with context.commit(one):
                    pass


def test_in_sync_code_it_says_what_to_write(app: App, note: Note, postgres_url: str) -> None:
    import asyncio  # noqa: PLC0415

    async def connected() -> Any:
        return await asyncpg.connect(**asyncpg_options(postgres_url))

    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(connected())
    context, _ = held(app)
    with pytest.raises(Invalid, match=r"await job\.using\("):
        note.using(connection).enqueue(1)
    with pytest.raises(Invalid, match="async with"), context.commit(connection):
        pass
    loop.run_until_complete(connection.close())
    loop.close()


async def test_a_savepoint_left_open_is_part_of_the_commit(app: App, bank: Connection, postgres_url: str) -> None:
    connection = await asyncpg.connect(**asyncpg_options(postgres_url))
    context, lease = held(app)
    async with context.commit(connection):
        await connection.transaction().start()
        await connection.execute("update balance set cents = 7")
    assert (cents(bank), has_marker(app, lease)) == (7, True)
    assert not connection.is_in_transaction()
    await connection.close()
