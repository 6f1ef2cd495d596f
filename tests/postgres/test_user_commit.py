"""`ctx.commit()` on PostgreSQL: the user's writes, the marker, the result and the follow-ups are one transaction."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from leasemill import App, Context, JobState, JobType, Retry, Worker
from leasemill.context import LossSignal
from leasemill.errors import Invalid, JobConflict, LeaseLost, Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.decide import followup_id
from leasemill.kernel.model import ExecutionStatus, JobSpec
from leasemill.store.base import open_store
from leasemill.store.postgres import cursors, user_commit
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.url import parse_url
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.worker.support import until, working

Connection = psycopg.Connection[Any]
SOON = Retry(max=3, base=0.001, cap=0.001)
WRITE = "update balance set cents = cents + %s where account = 'ann'"


@pytest.fixture
def bank(admin: Connection, schema: str) -> Iterator[Connection]:
    """The user's own tables, in the database of the store."""
    admin.execute("drop table if exists balance")
    admin.execute("create table balance (account text primary key, cents int8)")
    admin.execute("insert into balance values ('ann', 0)")
    yield admin
    admin.execute("drop table if exists balance")


@pytest.fixture
def app(postgres_url: str, bank: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("LEASEMILL_URL", postgres_url)
    with App(postgres_url) as made:
        yield made


def cents(bank: Connection) -> int:
    row = bank.execute("select cents from balance").fetchone()
    assert row is not None
    return int(row[0])


def nothing(app: App) -> JobType[..., Any]:
    if "nothing" not in app.jobs:

        @app.job
        def nothing() -> int | None:
            return None

    return app.jobs["nothing"]


def held(app: App, store: PostgresStore | None = None) -> tuple[Context, c.Lease]:
    """A job in this test's hands, and the context its handler would get."""
    job = nothing(app)
    store = store or app.store  # type: ignore[assignment]
    assert isinstance(store, PostgresStore)
    store.enqueue([JobSpec(store.entropy.new_id(), "default", "nothing", b"{}")])
    (lease,) = store.claim("w", ["default"], 1)
    return Context(lease, job, store, LossSignal(math.inf), time.monotonic() + 90), lease


async def drained(app: App, **options: Any) -> Worker:
    worker = Worker(app, drain=True, handle_signals=False, **options)
    await asyncio.wait_for(worker.run(), 30)
    return worker


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


def idle_in_transaction(bank: Connection) -> int:
    row = bank.execute(
        "select count(*) from pg_stat_activity where application_name = 'leasemill commit' and state <> 'idle'"
    ).fetchone()
    assert row is not None
    return int(row[0])


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


def test_a_transaction_ended_by_hand_is_not_marked_as_committed(app: App, bank: Connection) -> None:
    context, lease = held(app)

    def commit() -> None:
        with context.commit() as tx:
            tx.execute("rollback")

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
async def test_where_prepared_statements_do_not_last_it_goes_on_without(
    app: App, bank: Connection, is_async: bool
) -> None:
    store = app.store
    assert isinstance(store, PostgresStore)
    for _ in range(4):
        context, lease = held(app)
        await entered(context, is_async, store.wake)
        for connection in (*store._commits._idle, *store._commits._async_idle):
            connection.pgconn.exec_(b"deallocate all")
    assert not store._commits.prepares
    assert cents(bank) == 28
    context, lease = held(app)
    with pytest.raises(LeaseLost):
        await entered(context, is_async, lambda: app.store.cancel([lease.job.id], by="me", reason="a test"))
    assert cents(bank) == 28


# The lease -------------------------------------------------------------------------------------------------------


def refused(app: App, lease: c.Lease) -> list[tuple[str, str]]:
    job = app.store.job(lease.job.id)
    assert job is not None
    return [(refusal.verb.value, refusal.reason.value) for refusal in job.refusals]


@rule("L2", "L5")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_lease_lost_before_the_block_keeps_it_from_running(app: App, bank: Connection, is_async: bool) -> None:
    context, lease = held(app)
    app.store.cancel([lease.job.id], by="me", reason="a test")
    with pytest.raises(LeaseLost):
        await entered(context, is_async)
    assert refused(app, lease) == [("commit", "cancelled")]
    assert context.lost.is_set()


async def entered(context: Context, is_async: bool, then: Callable[[], object] | None = None) -> None:
    """Commits a write, with something happening in the block."""
    if is_async:
        async with context.commit() as tx:
            await tx.execute(WRITE, [7])
            if then is not None:
                then()
    else:
        await asyncio.to_thread(entered_sync, context, then)


def entered_sync(context: Context, then: Callable[[], object] | None) -> None:
    with context.commit() as tx:
        tx.execute(WRITE, [7])
        if then is not None:
            then()


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
    """The block holds its writes for three leases, and the only connections for commits."""

    @app.job(name="slow", lease=0.6, timeout=30)
    async def slow_async(ctx: Context) -> None:
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [1])
            await asyncio.sleep(1.8)

    @app.job(name="slow_too", lease=0.6, timeout=30)
    def slow_sync(ctx: Context) -> None:
        with ctx.commit() as tx:
            tx.execute("select 1")
            time.sleep(1.8)
            tx.execute(WRITE, [1])

    job = slow_async if is_async else slow_sync
    handle = job.enqueue()
    worker = await drained(app)
    assert (handle.record().attempt, handle.status()) == (1, JobState.SUCCEEDED)
    assert worker.metrics.lost == 0
    assert worker.metrics.extended >= 5
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
    began = time.monotonic()
    await drained(app)
    assert time.monotonic() - began < 10
    assert handle.status() is JobState.FAILED
    assert cents(bank) == 0
    assert idle_in_transaction(bank) == 0


@rule("X3")
async def test_a_commit_says_when_its_run_began(app: App, bank: Connection) -> None:
    @app.job
    async def slow(ctx: Context) -> None:
        await asyncio.sleep(0.3)
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [1])

    handle = slow.enqueue()
    await drained(app)
    (execution,) = handle.record().executions
    assert execution.started_at is not None
    assert execution.committed_at is not None
    assert execution.committed_at - execution.started_at >= 300_000
    assert execution.leased_at <= execution.started_at


# Connections that are lost ---------------------------------------------------------------------------------------


def terminate(bank: Connection) -> None:
    bank.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'leasemill commit'")


@pytest.mark.parametrize("is_async", [True, False])
async def test_idle_connections_that_were_cut_are_replaced_unnoticed(
    app: App, bank: Connection, is_async: bool
) -> None:
    for _ in range(3):
        context, _ = held(app)
        await entered(context, is_async)
        terminate(bank)
    assert cents(bank) == 21


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_connection_cut_in_the_block_fails_the_run_and_the_next_one_applies_it_once(
    app: App, bank: Connection, is_async: bool
) -> None:
    @app.job(name="cut", retry=SOON)
    async def cut_async(ctx: Context) -> None:
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [1])
            if ctx.attempt == 1:
                terminate(bank)
            await tx.execute(WRITE, [1])

    @app.job(name="cut_too", retry=SOON)
    def cut_sync(ctx: Context) -> None:
        with ctx.commit() as tx:
            tx.execute(WRITE, [1])
            if ctx.attempt == 1:
                terminate(bank)
            tx.execute(WRITE, [1])

    handle = (cut_async if is_async else cut_sync).enqueue()
    await drained(app)
    assert (handle.status(), handle.record().retries, cents(bank)) == (JobState.SUCCEEDED, 1, 2)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_connection_lost_around_commit_is_resolved_by_asking(
    app: App, bank: Connection, monkeypatch: pytest.MonkeyPatch, is_async: bool, is_done: bool
) -> None:
    """Its reply is lost, or COMMIT itself: the run has succeeded, or is repeated; the effect is there once."""
    cuts = iter([True])

    def cut(connection: Any) -> None:
        connection.pgconn.finish()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    async def asay(connection: psycopg.AsyncConnection[Any], message: bytes) -> Any:
        if message.endswith(b";commit") and next(cuts, False):
            if is_done:
                await cursors.asay(connection, message)
            cut(connection)
        return await cursors.asay(connection, message)

    def say(connection: Connection, message: bytes) -> Any:
        if message.endswith(b";commit") and next(cuts, False):
            if is_done:
                cursors.say(connection, message)
            cut(connection)
        return cursors.say(connection, message)

    monkeypatch.setattr(user_commit, "asay", asay)
    monkeypatch.setattr(user_commit, "say", say)

    @app.job(name="cut", retry=SOON)
    async def cut_async(ctx: Context) -> None:
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [1])
            tx.enqueue(nothing(app))

    @app.job(name="cut_too", retry=SOON)
    def cut_sync(ctx: Context) -> None:
        with ctx.commit() as tx:
            tx.execute(WRITE, [1])
            tx.enqueue(nothing(app))

    handle = (cut_async if is_async else cut_sync).enqueue()
    await drained(app)
    job = handle.record()
    assert job.state is JobState.SUCCEEDED
    assert (job.attempt, job.retries) == ((1, 0) if is_done else (2, 1))
    assert cents(bank) == 1
    assert app.handle(followup_id(handle.id, 0)).status() is JobState.SUCCEEDED
    if not is_done:
        assert "the connection was lost before job" in (job.executions[0].error or "")


@pytest.mark.parametrize("ends_with", ["commit", "rollback"])
def test_the_question_waits_for_a_commit_that_is_under_way(
    app: App, bank: Connection, postgres_url: str, ends_with: str
) -> None:
    """The server may still be at it when the client has long lost the connection."""
    store = app.store
    assert isinstance(store, PostgresStore)
    _, lease = held(app)
    command = c.Commit(lease.job.id, lease.token)
    with psycopg.connect(parse_url(postgres_url)[0], autocommit=True) as lost:
        lost.execute("begin")
        lost.execute(
            store._site.statements["commit"], {"id": lease.job.id, "token": lease.token, "result": None, "now": None}
        )
        ending = threading.Timer(0.3, lambda: lost.execute(ends_with.encode()))
        ending.start()
        began = time.monotonic()
        outcome = store.settle(command)
        assert time.monotonic() - began > 0.2
        ending.join()
    assert outcome == (c.Committed(lease.job.id, (), is_repeat=True) if ends_with == "commit" else None)


@rule("X5")
def test_a_commit_that_arrives_after_its_run_was_given_up_is_refused(app: App, bank: Connection) -> None:
    """What the question cannot know, the nack that follows settles: it takes the lease, or finds it committed."""
    store = app.store
    assert isinstance(store, PostgresStore)
    context, lease = held(app)
    with pytest.raises(LeaseLost):
        entered_sync(context, lambda: store.nack([c.NackReport(lease.job.id, lease.token, "given up")]))
    assert cents(bank) == 0


async def test_while_the_store_is_away_a_block_is_entered_later_or_given_up(app: App, bank: Connection) -> None:
    context, _ = held(app)
    store = app.store
    assert isinstance(store, PostgresStore)
    conninfo, store._commits._conninfo = store._commits._conninfo, "host=/nowhere port=1"
    context.lost.held_until = time.monotonic() + 0.3
    with pytest.raises(LeaseLost):
        await entered(context, True)
    context, _ = held(app)
    back = asyncio.get_running_loop().call_later(0.2, setattr, store._commits, "_conninfo", conninfo)
    await entered(context, True)
    back.cancel()
    assert cents(bank) == 7


# How many --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_more_handlers_than_connections_take_turns(
    postgres_url: str, bank: Connection, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{postgres_url}&commit_pool_size=2"
    monkeypatch.setenv("LEASEMILL_URL", url)
    with App(url) as app:

        @app.job(name="deposit")
        async def deposit_async(ctx: Context) -> None:
            async with ctx.commit() as tx:
                await tx.execute(WRITE, [1])
                await asyncio.sleep(0.01)

        @app.job(name="deposit_too")
        def deposit_sync(ctx: Context) -> None:
            with ctx.commit() as tx:
                tx.execute(WRITE, [1])
                time.sleep(0.01)

        job = deposit_async if is_async else deposit_sync
        job.enqueue_many([job.call() for _ in range(40)])
        worker = await drained(app, concurrency=8)
        assert worker.metrics.succeeded == 40
        assert cents(bank) == 40
        row = bank.execute(
            "select count(*) from pg_stat_activity where application_name = 'leasemill commit'"
        ).fetchone()
        assert row is not None
        assert row[0] <= 2


def test_a_pool_that_stays_exhausted_says_which_option_to_raise(postgres_url: str, bank: Connection, app: App) -> None:
    with PostgresStore(f"{postgres_url}&commit_pool_size=1&pool_timeout_s=0.1") as store:
        (first, _), (_, second) = held(app, store), held(app, store)

        async def one_too_many() -> None:
            async with first.commit():
                await store.block(second, 5.0).abegin()

        with pytest.raises(Unavailable, match="raise commit_pool_size"):
            asyncio.run(one_too_many())
        with first.commit(), pytest.raises(Unavailable, match="raise commit_pool_size"):
            store.block(second, 5.0).begin()
        assert isinstance(store.extend([c.LeaseRef(second.job.id, second.token)])[0], c.Extended)


async def test_a_worker_at_full_load_commits_every_job_once(app: App, bank: Connection) -> None:
    @app.job(queue="many", retry=SOON)
    async def deposit(ctx: Context, number: int) -> None:
        async with ctx.commit() as tx:
            await tx.execute(WRITE, [number])

    deposit.enqueue_many([deposit.call(number) for number in range(300)])
    async with working(app, queues=["many"]) as worker:
        await until(lambda: worker.metrics.succeeded == 300, limit_s=30)
    assert cents(bank) == sum(range(300))
