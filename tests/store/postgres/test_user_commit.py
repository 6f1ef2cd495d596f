"""`ctx.commit()` on PostgreSQL: the user's writes, the marker, the result and the follow-ups are one transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from leasemill import App, Context, JobState
from leasemill.errors import Invalid, JobConflict, LeaseLost, Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import ExecutionStatus, JobSpec
from leasemill.kernel.verbs.commit import followup_id
from leasemill.store.factory import open_store
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.store.postgres.committing import (
    WRITE,
    Connection,
    cents,
    drained,
    entered,
    entered_sync,
    held,
    idle_in_transaction,
    nothing,
    refused,
)


@pytest.fixture
def app(postgres_url: str, bank: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("LEASEMILL_URL", postgres_url)
    with App(postgres_url) as made:
        yield made


# One transaction -------------------------------------------------------------------------------------------------


@rule("X6")
@pytest.mark.parametrize("is_async", [True, False])
async def test_writes_marker_result_and_followups_are_one(app: App, bank: Connection, is_async: bool) -> None:
    @app.job(queue="receipts", lane="account")
    async def receipt(account: str, cents: int) -> str:
        return f"{account}: {cents}"

    if is_async:

        @app.job(name="deposit")
        async def deposit(ctx: Context, amount: int) -> int:
            async with ctx.commit() as tx:
                cursor = await tx.execute(WRITE + " returning cents", [amount])
                row = await cursor.fetchone()
                tx.enqueue(receipt, "ann", amount)
                assert row is not None
                tx.set_result(row[0])
            return amount

    else:

        @app.job(name="deposit")
        def deposit(ctx: Context, amount: int) -> int:
            with ctx.commit() as tx:
                row = tx.execute(WRITE + " returning cents", [amount]).fetchone()
                tx.enqueue(receipt, "ann", amount)
                assert row is not None
                tx.set_result(row[0])
            return amount

    handles = [deposit.enqueue(5) for _ in range(30)]
    await drained(app)
    assert cents(bank) == 150
    assert sorted(handle.result(0) for handle in handles) == [5 * number for number in range(1, 31)]
    assert app.handle(followup_id(handles[0].id, 0)).result(0) == "ann: 5"
    for handle in handles:
        (execution,) = handle.record().executions
        assert (execution.status, execution.committed_at is not None) == (ExecutionStatus.DONE, True)


def test_nothing_is_there_before_the_block_is_left_and_all_of_it_after(app: App, bank: Connection) -> None:
    context, lease = held(app)
    with context.commit() as tx:
        tx.execute(WRITE, [7])
        tx.enqueue(nothing(app))
        assert cents(bank) == 0
        assert app.store.job(followup_id(lease.job.id, 0)) is None
    assert cents(bank) == 7
    assert app.store.job(followup_id(lease.job.id, 0)) is not None
    assert context.is_committed


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_error_in_the_block_rolls_back_and_goes_on_to_the_handler(
    app: App, bank: Connection, is_async: bool
) -> None:
    @app.job(name="wrong", retry=0)
    async def wrong_async(ctx: Context) -> None:
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [7])
            raise ValueError("not after all")

    @app.job(name="wrong_too", retry=0)
    def wrong_sync(ctx: Context) -> None:
        with ctx.commit() as tx:
            tx.execute(WRITE, [7])
            raise ValueError("not after all")

    handle = (wrong_async if is_async else wrong_sync).enqueue()
    await drained(app)
    job = handle.record()
    assert job.state is JobState.FAILED
    assert "not after all" in (job.executions[0].error or "")
    assert cents(bank) == 0
    assert idle_in_transaction(bank) == 0


@rule("X6")
def test_a_conflicting_followup_takes_the_writes_with_it(app: App, bank: Connection) -> None:
    context, lease = held(app)
    app.store.enqueue([JobSpec(followup_id(lease.job.id, 0), "default", "other", b"{}")])

    def commit(is_conflicting: bool) -> None:
        with context.commit() as tx:
            tx.execute(WRITE, [7])
            if is_conflicting:
                tx.enqueue(nothing(app))

    with pytest.raises(JobConflict):
        commit(True)
    assert cents(bank) == 0
    commit(False)
    assert cents(bank) == 7


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_refusal_of_the_database_at_commit_is_the_handlers_error(
    app: App, bank: Connection, is_async: bool
) -> None:
    """A deferred constraint is checked by COMMIT itself, behind the marker."""
    bank.execute("alter table balance add constraint once unique (cents) deferrable initially deferred")
    context, lease = held(app)
    write = "insert into balance values ('bob', 0)"

    async def commit() -> None:
        if is_async:
            async with context.commit() as tx:
                await tx.execute(write)
        else:
            await asyncio.to_thread(commit_sync)

    def commit_sync() -> None:
        with context.commit() as tx:
            tx.execute(write)

    with pytest.raises(psycopg.errors.UniqueViolation):
        await commit()
    assert not context.is_committed
    job = app.store.job(lease.job.id)
    assert job is not None
    assert job.executions[-1].committed_at is None
    write = "insert into balance values ('bob', 1)"
    await commit()
    assert context.is_committed


def test_an_error_swallowed_in_the_block_does_not_commit(app: App, bank: Connection) -> None:
    context, _ = held(app)

    def commit() -> None:
        with context.commit() as tx:
            tx.execute(WRITE, [7])
            with pytest.raises(psycopg.errors.UndefinedTable):
                tx.execute("select * from nothing_of_this_name")

    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        commit()
    assert cents(bank) == 0


# The connection --------------------------------------------------------------------------------------------------


def test_the_connection_takes_cursors_and_savepoints_and_refuses_to_end_the_transaction(
    app: App, bank: Connection
) -> None:
    context, _ = held(app)
    with context.commit() as tx:
        with tx.connection.cursor() as cursor:
            cursor.executemany(WRITE, [[1], [2], [3]])
        with tx.connection.transaction(force_rollback=True):
            tx.execute(WRITE, [1000])
        for end in (tx.connection.commit, tx.connection.rollback):
            with pytest.raises(psycopg.ProgrammingError, match=r"the block of ctx\.commit\(\)"):
                end()
    assert cents(bank) == 6


async def test_an_async_connection_does_so_too(app: App, bank: Connection) -> None:
    context, _ = held(app)
    async with context.commit() as tx:
        async with tx.connection.cursor() as cursor:
            await cursor.executemany(WRITE, [[1], [2], [3]])
        async with tx.connection.transaction(force_rollback=True):
            await tx.execute(WRITE, [1000])
        for end in (tx.connection.commit, tx.connection.rollback):
            with pytest.raises(psycopg.ProgrammingError, match=r"the block of ctx\.commit\(\)"):
                await end()
    assert cents(bank) == 6


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_ended_by_hand_is_not_marked_as_committed(app: App, bank: Connection, goes_on: bool) -> None:
    context, lease = held(app)

    def commit() -> None:
        with context.commit() as tx:
            tx.execute("rollback")
            if goes_on:
                tx.execute("select 1")

    with pytest.raises(Refused, match="was ended inside its block"):
        commit()
    job = app.store.job(lease.job.id)
    assert job is not None
    assert job.executions[-1].committed_at is None


@pytest.mark.filterwarnings("error")
async def test_an_execute_that_was_not_awaited_is_noticed(app: App, bank: Connection) -> None:
    context, _ = held(app)

    async def forgetful() -> None:
        async with context.commit() as tx:
            await tx.execute(WRITE, [1])
            tx.execute(WRITE, [2])  # type: ignore[unused-coroutine]

    with pytest.raises(Invalid, match=r"write `await tx\.execute"):
        await forgetful()
    assert cents(bank) == 0


def test_users_statements_run_with_the_servers_own_settings(app: App, bank: Connection) -> None:
    context, _ = held(app)
    with context.commit() as tx:
        row = tx.execute(
            "select current_setting('enable_seqscan'), current_setting('statement_timeout'), "
            "current_setting('idle_in_transaction_session_timeout')::interval, current_setting('transaction_isolation')"
        ).fetchone()
    assert row is not None
    assert (row[0], row[1], row[3]) == ("on", "0", "read committed")
    assert 80 < row[2].total_seconds() <= 90


def test_what_a_block_sets_on_its_connection_does_not_disturb_the_next(app: App, bank: Connection) -> None:
    for _ in range(3):
        context, _ = held(app)
        with context.commit() as tx:
            assert tx.execute("select 1").fetchone() == (1,)
            tx.connection.row_factory = psycopg.rows.dict_row  # type: ignore[assignment]
            tx.execute("set search_path to nowhere, public")
            tx.execute(WRITE, [1])
            tx.enqueue(nothing(app))
    assert cents(bank) == 3


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_other_stores_say_what_to_use_instead(scheme: str, tmp_path: Any) -> None:
    raised: list[str] = []

    with App(store=open_store(f"{scheme}:{tmp_path}")) as app:

        @app.job
        def effect(ctx: Context) -> None:
            with ctx.commit() as tx:
                for use in (lambda: tx.execute("select 1"), lambda: tx.connection):
                    with pytest.raises(Invalid) as caught:
                        use()
                    raised.append(str(caught.value))

        handle = effect.enqueue()
        asyncio.run(drained(app))
        assert handle.status() is JobState.SUCCEEDED
    assert len(raised) == 2
    assert all("need a store on PostgreSQL" in text for text in raised)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_block_may_make_psycopg_forget_what_is_prepared(app: App, bank: Connection, is_async: bool) -> None:
    """It does so after DROP, ALTER and ROLLBACK TO, for the statements of ours in that session too."""
    for _ in range(3):
        context, _ = held(app)
        if is_async:
            async with context.commit() as tx:
                for _ in range(8):
                    await tx.execute(WRITE, [1])
                async with tx.connection.transaction(force_rollback=True):
                    await tx.execute(WRITE, [100])
                await tx.execute("create temp table scratch (n int) on commit drop")
                await tx.execute("drop table scratch")
        else:
            await asyncio.to_thread(forgetful_block, context)
    assert cents(bank) == 24


def forgetful_block(context: Context) -> None:
    with context.commit() as tx:
        for _ in range(8):
            tx.execute(WRITE, [1])
        with tx.connection.transaction(force_rollback=True):
            tx.execute(WRITE, [100])
        tx.execute("create temp table scratch (n int) on commit drop")
        tx.execute("drop table scratch")


@pytest.mark.parametrize("is_async", [True, False])
async def test_where_prepared_statements_do_not_last_blocks_do_not_need_any(
    app: App, bank: Connection, is_async: bool
) -> None:
    store = app.store
    assert isinstance(store, PostgresStore)
    for _ in range(4):
        context, lease = held(app)
        await entered(context, is_async, store.wake)
        for connection in (*store._commits._pool._idle, *store._commits._async_pool._idle):
            connection.pgconn.exec_(b"deallocate all")
    assert cents(bank) == 28
    context, lease = held(app)
    with pytest.raises(LeaseLost):
        await entered(context, is_async, lambda: app.store.cancel([lease.job.id], by="me", reason="a test"))
    assert cents(bank) == 28


# The lease -------------------------------------------------------------------------------------------------------


@rule("L2", "L5")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_lease_lost_before_the_block_keeps_it_from_running(app: App, bank: Connection, is_async: bool) -> None:
    context, lease = held(app)
    app.store.cancel([lease.job.id], by="me", reason="a test")
    with pytest.raises(LeaseLost):
        await entered(context, is_async)
    assert refused(app, lease) == [("commit", "cancelled")]
    assert context.lost.is_set()


@rule("L2", "L4", "L5")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_lease_lost_in_the_block_rolls_back_and_leaves_its_refusal(
    app: App, bank: Connection, is_async: bool
) -> None:
    context, lease = held(app)
    with pytest.raises(LeaseLost, match="commit of job"):
        await entered(context, is_async, lambda: app.store.cancel([lease.job.id], by="me", reason="a test"))
    assert cents(bank) == 0
    assert refused(app, lease) == [("commit", "cancelled")]


@rule("L3", "X4")
@pytest.mark.parametrize("is_async", [True, False])
async def test_the_run_after_a_zombie_commits_and_the_zombie_does_not(
    app: App, bank: Connection, postgres_url: str, is_async: bool
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store, app.bound_to(store):
        zombie, lease = held(app, store)

        def taken_over() -> None:
            clock.advance(s=31)
            (second,) = store.claim("w2", ["default"], 1)
            assert second.job.id == lease.job.id
            store.commit(second.job.id, second.token)

        with pytest.raises(LeaseLost) as caught:
            await entered(zombie, is_async, taken_over)
        assert caught.value.current_attempt == 2
        assert cents(bank) == 0
        assert refused(app, lease) == [("commit", "superseded")]


@rule("X4")
def test_a_block_of_a_lease_that_has_committed_does_not_run(app: App, bank: Connection) -> None:
    context, lease = held(app)
    app.store.commit(lease.job.id, lease.token)
    with pytest.raises(Invalid, match="has committed in this run already"):
        entered_sync(context, None)
    assert cents(bank) == 0


def test_an_open_block_locks_nothing_of_the_stores(app: App, bank: Connection, schema: str) -> None:
    context, lease = held(app)

    def others_at_work() -> None:
        for table in ("leases", "jobs", "queues"):
            bank.execute(f"select * from {schema}.{table} for update nowait".encode())
        (extended,) = app.store.extend([c.LeaseRef(lease.job.id, lease.token)])
        assert isinstance(extended, c.Extended)

    entered_sync(context, others_at_work)
    assert cents(bank) == 7


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_slow_block_does_not_starve_the_heartbeat(app: App, bank: Connection, is_async: bool) -> None:
    """The block holds its writes for longer than a lease, and the only connections for commits."""

    @app.job(name="slow", lease=2, timeout=60)
    async def slow_async(ctx: Context) -> None:
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [1])
            await asyncio.sleep(3)

    @app.job(name="slow_too", lease=2, timeout=60)
    def slow_sync(ctx: Context) -> None:
        with ctx.commit() as tx:
            tx.execute("select 1")
            time.sleep(3)
            tx.execute(WRITE, [1])

    job = slow_async if is_async else slow_sync
    handle = job.enqueue()
    worker = await drained(app)
    assert (handle.record().attempt, handle.status()) == (1, JobState.SUCCEEDED)
    assert worker.metrics.lost == 0
    assert worker.metrics.extended >= 2
    assert cents(bank) == 1


async def test_a_handler_cancelled_in_its_block_leaves_nothing_and_the_connection_to_others(
    app: App, bank: Connection
) -> None:
    @app.job(timeout=0.2, retry=0)
    async def endless(ctx: Context) -> None:
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [1])
            await tx.execute("select pg_sleep(60)")

    handle = endless.enqueue()
    await asyncio.wait_for(drained(app), 50)
    assert handle.status() is JobState.FAILED
    assert cents(bank) == 0
    assert idle_in_transaction(bank) == 0


@rule("X3")
async def test_a_commit_says_when_its_run_began(app: App, bank: Connection) -> None:
    @app.job
    async def slow(ctx: Context) -> None:
        await asyncio.sleep(1)
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [1])

    handle = slow.enqueue()
    await drained(app)
    (execution,) = handle.record().executions
    assert execution.started_at is not None
    assert execution.committed_at is not None
    assert execution.committed_at - execution.started_at >= 500_000  # a start may be reported late
    assert execution.leased_at <= execution.started_at


@rule("X6")
def test_a_commit_that_is_not_held_fails_with_a_code_of_its_own(app: App, bank: Connection, schema: str) -> None:
    """So that the COMMIT behind it in the same message is not carried out."""
    _, lease = held(app)
    call = sql.SQL("select {}(%s, %s, null, null, %s)").format(sql.Identifier(schema, "commit_lease"))
    with pytest.raises(psycopg.Error, match="is not held") as failed:
        bank.execute(call, [lease.job.id, "another token", True])
    assert failed.value.sqlstate == "LM001"
    assert bank.execute(call, [lease.job.id, "another token", False]).fetchone() == (False,)
    assert bank.execute(call, [lease.job.id, lease.token, True]).fetchone() == (True,)
